"""Targets that raise in one method, on one rank."""

from __future__ import annotations

import re
from typing import Any

import torch

from ppharness.targets import (
    BuiltinMambaState,
    BuiltinTarget,
    BuiltinTokenRelay,
    InputBatch,
    SampledOutputs,
    TargetConfig,
)
from ppharness.targets.interface import RelayChannel

MESSAGE = "raised on purpose"
CONTROL = (
    "red \x1b[31m, bell \x07, nul \x00, back \r, next\nline, right to left \u202e, half \ud800"
)


class _PreprocessState(BuiltinMambaState):
    def preprocess_state(self, batch: InputBatch, num_computed_tokens: torch.Tensor) -> None:
        if self.config.pp_rank == 1:
            raise RuntimeError(MESSAGE)


class _PostprocessState(BuiltinMambaState):
    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        if self.config.pp_rank == 1:
            raise RuntimeError(MESSAGE)
        super().postprocess_state(idx_mapping, num_sampled, num_computed_tokens)


class _AddState(BuiltinMambaState):
    def add_request(self, req_idx: int, num_computed_tokens: int) -> None:
        if self.config.pp_rank == 2:
            raise RuntimeError(MESSAGE)
        super().add_request(req_idx, num_computed_tokens)


class _RemoveState(BuiltinMambaState):
    def remove_request(self, req_idx: int) -> None:
        if self.config.pp_rank == 0:
            raise RuntimeError(MESSAGE)


class _ConstructorState(BuiltinMambaState):
    def __init__(self, config: TargetConfig):
        raise RuntimeError(MESSAGE)


class _ControlState(BuiltinMambaState):
    def preprocess_state(self, batch: InputBatch, num_computed_tokens: torch.Tensor) -> None:
        if self.config.pp_rank == 1:
            raise RuntimeError(CONTROL)


class _SilentError(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no text")


class _SilentState(BuiltinMambaState):
    def preprocess_state(self, batch: InputBatch, num_computed_tokens: torch.Tensor) -> None:
        if self.config.pp_rank == 1:
            raise _SilentError


class _ReceiveRelay(BuiltinTokenRelay):
    def receive(self, batch: InputBatch) -> bool:
        if self.config.pp_rank == 0:
            raise RuntimeError(MESSAGE)
        return super().receive(batch)


class _BroadcastRelay(BuiltinTokenRelay):
    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(MESSAGE)


class _HalfBroadcastRelay(BuiltinTokenRelay):
    """Raises between the two broadcasts of a step."""

    def broadcast(
        self,
        sampled_token_ids: torch.Tensor,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        batch: InputBatch,
    ) -> None:
        self.channel.broadcast(sampled_token_ids.contiguous(), "sampled tokens")
        raise RuntimeError(MESSAGE)


class _GetPrevRelay(BuiltinTokenRelay):
    """Where the first sample is due."""

    def get_prev_sampled_outputs(self) -> SampledOutputs | None:
        outputs = super().get_prev_sampled_outputs()
        if outputs is not None and self.config.pp_rank == 1:
            raise RuntimeError(MESSAGE)
        return outputs


class _FreedRelay(BuiltinTokenRelay):
    def on_req_idx_freed(self, req_idx: int) -> None:
        if self.config.pp_rank == 1:
            raise RuntimeError(MESSAGE)
        super().on_req_idx_freed(req_idx)


class _ConstructorRelay(BuiltinTokenRelay):
    def __init__(self, config: TargetConfig, channel: RelayChannel):
        super().__init__(config, channel)
        if config.pp_rank == 1:
            raise RuntimeError(MESSAGE)


class Preprocess(BuiltinTarget):
    mamba_state_class = _PreprocessState


class Postprocess(BuiltinTarget):
    mamba_state_class = _PostprocessState


class Add(BuiltinTarget):
    mamba_state_class = _AddState


class Remove(BuiltinTarget):
    mamba_state_class = _RemoveState


class StateConstructor(BuiltinTarget):
    mamba_state_class = _ConstructorState


class Control(BuiltinTarget):
    mamba_state_class = _ControlState


class Silent(BuiltinTarget):
    mamba_state_class = _SilentState


class Receive(BuiltinTarget):
    token_relay_class = _ReceiveRelay


class Broadcast(BuiltinTarget):
    token_relay_class = _BroadcastRelay


class HalfBroadcast(BuiltinTarget):
    token_relay_class = _HalfBroadcastRelay


class GetPrev(BuiltinTarget):
    token_relay_class = _GetPrevRelay


class Freed(BuiltinTarget):
    token_relay_class = _FreedRelay


class RelayConstructor(BuiltinTarget):
    token_relay_class = _ConstructorRelay


class TargetConstructor(BuiltinTarget):
    def __init__(self) -> None:
        raise RuntimeError(MESSAGE)


def search_for_ever() -> None:
    """A regular expression that takes longer than the universe has, and keeps the lock."""
    re.match(r"(a+)+$", "a" * 60 + "b")


class _HoldsTheLock(BuiltinMambaState):
    def preprocess_state(self, batch: InputBatch, num_computed_tokens: torch.Tensor) -> None:
        if self.config.pp_rank == 1 and batch.step == 3:
            search_for_ever()


class HoldsTheLock(BuiltinTarget):
    """Its second stage never gives the interpreter's lock back."""

    name = "holds-the-lock"
    mamba_state_class = _HoldsTheLock
