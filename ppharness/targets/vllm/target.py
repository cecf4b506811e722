"""The two targets: the whole path of a release, and its state module alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...vllm_cache import VllmCacheError, locate
from ..interface import MambaState, RelayChannel, RequestSlots, TargetConfig, TokenRelay
from .errors import TargetError, TargetSkip
from .release import load_release

if TYPE_CHECKING:
    from .parts import Parts


class VllmTarget:
    """A release's state module, PPHandler, request state and kernels.

    Only what holds for every implementation is checked (`exact` is False): a release
    may, say, leave other values in the slot of a request that has finished.
    """

    name = "vllm"
    exact = False

    def __init__(self, path: Path | None = None, *, on_cpu: bool | None = None):
        """Import the release in `path` (see `vllm_cache.locate`), or the installed one.

        Takes seconds: make it once, before ranks are forked.  Raises TargetError.
        """
        from .parts import find_parts

        self.release = load_release(path, on_cpu=on_cpu)
        self.version: str | None = self.release.version
        self._parts: Parts = find_parts(self.release)
        self.warnings: list[str] = list(self._parts.warnings)

    def idx_mapping_dtype(self) -> torch.dtype:
        """As the release's own model runner makes it."""
        return self._parts.differences.mapping_dtype

    def make_mamba_state(self, config: TargetConfig) -> MambaState:
        from .state import VllmMambaState

        self._refuse_align(config)
        return VllmMambaState(self._parts, config)

    def make_token_relay(self, config: TargetConfig, channel: RelayChannel) -> TokenRelay:
        from .relay import make_relay

        return make_relay(self._parts, config, channel)

    def make_request_slots(self, config: TargetConfig) -> RequestSlots:
        from .slots import VllmRequestSlots

        return VllmRequestSlots(self._parts, config)

    def _refuse_align(self, config: TargetConfig) -> None:
        if config.mamba_cache_mode == "align":
            raise TargetSkip(
                f"{self.name} {self.version}: align mode needs the release's block tables and "
                "cache layout, which this target does not build yet"
            )


class VllmStateTarget(VllmTarget):
    """Only the release's state module; the relay and the request state are ours."""

    name = "vllm-state"

    def make_token_relay(self, config: TargetConfig, channel: RelayChannel) -> TokenRelay:
        from ..builtin import BuiltinTokenRelay

        return BuiltinTokenRelay(config, channel)

    def make_request_slots(self, config: TargetConfig) -> RequestSlots:
        from ..builtin import BuiltinRequestSlots

        return BuiltinRequestSlots(config)


def load_vllm_target(name: str) -> VllmTarget:
    """`vllm`, `vllm-state`, `vllm@VERSION` or `vllm-state@VERSION`.

    Raises:
        TargetError: no such release here, or one that cannot be imported or driven.
    """
    kind, at, version = name.partition("@")
    classes: dict[str, type[VllmTarget]] = {c.name: c for c in (VllmTarget, VllmStateTarget)}
    if kind not in classes:
        raise TargetError(f"--target: found {name!r}, allowed: {', '.join(classes)}, or @VERSION")
    try:
        path = locate(version) if at else None
    except VllmCacheError as error:
        raise TargetError(f"--target {name}: {error}") from error
    return classes[kind](path)
