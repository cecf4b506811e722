"""Targets that are no business of the harness, in unusual ways."""

from __future__ import annotations

from typing import Any

import torch
from right import OnePacketRelay

from ppharness.targets import BuiltinMambaState, BuiltinTarget, BuiltinTokenRelay, TargetConfig
from ppharness.targets.interface import RelayChannel, TargetSkip


class ColumnsDiffer(BuiltinTarget):
    """Right: the second rank of each stage relays in another way than the first."""

    exact = True

    def idx_mapping_dtype(self) -> torch.dtype:
        return torch.int64

    def make_token_relay(self, config: TargetConfig, channel: RelayChannel) -> Any:
        return (OnePacketRelay if config.tp_rank else BuiltinTokenRelay)(config, channel)


class SkipsOnFirst(BuiltinTarget):
    """One rank alone cannot run it."""

    def make_mamba_state(self, config: TargetConfig) -> BuiltinMambaState:
        if config.pp_rank == 0:
            raise TargetSkip("not on the first stage")
        return super().make_mamba_state(config)


class _SaysMuch(BuiltinMambaState):
    def postprocess_state(self, *args: Any) -> None:
        if self.config.pp_rank == 0:
            raise ValueError("much " * 2_000_000)
        super().postprocess_state(*args)


class SaysMuch(BuiltinTarget):
    """Raises with a text of 10 MB."""

    mamba_state_class = _SaysMuch
