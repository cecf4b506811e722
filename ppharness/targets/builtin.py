"""The built-in target: an implementation that follows the protocol to the letter."""

from __future__ import annotations

import torch

from .interface import RelayChannel, TargetConfig
from .mamba_state import BuiltinMambaState
from .request_slots import BuiltinRequestSlots
from .token_relay import BuiltinTokenRelay

__all__ = ["BuiltinMambaState", "BuiltinRequestSlots", "BuiltinTarget", "BuiltinTokenRelay"]


class BuiltinTarget:
    """Factories of the parts under test; subclass it and name your own classes."""

    name: str = "builtin"
    version: str | None = None
    exact: bool = True

    mamba_state_class: type[BuiltinMambaState] = BuiltinMambaState
    token_relay_class: type[BuiltinTokenRelay] = BuiltinTokenRelay
    request_slots_class: type[BuiltinRequestSlots] = BuiltinRequestSlots

    def idx_mapping_dtype(self) -> torch.dtype:
        """The mapping's type where a scenario does not pin one."""
        return torch.int32

    def make_mamba_state(self, config: TargetConfig) -> BuiltinMambaState:
        return self.mamba_state_class(config)

    def make_token_relay(self, config: TargetConfig, channel: RelayChannel) -> BuiltinTokenRelay:
        return self.token_relay_class(config, channel)

    def make_request_slots(self, config: TargetConfig) -> BuiltinRequestSlots:
        return self.request_slots_class(config)
