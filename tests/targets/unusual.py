"""Targets that are no business of the harness, in unusual ways."""

from __future__ import annotations

import threading
import time
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


class _RowOfATable(BuiltinMambaState):
    """Its counts are a row of a table, which it writes through the table."""

    def __init__(self, config: TargetConfig):
        super().__init__(config)
        self.table = torch.ones(2, config.max_num_reqs, dtype=torch.int32)
        self.num_accepted_tokens = self.table[1]

    def postprocess_state(self, idx_mapping: torch.Tensor, num_sampled: Any, *more: Any) -> None:
        counts = torch.as_tensor(num_sampled, dtype=torch.int32).expand(len(idx_mapping))
        for slot, count in zip(idx_mapping.tolist(), counts.tolist(), strict=True):
            if slot >= 0:
                self.write(slot, max(count, 1))

    def write(self, slot: int, count: int) -> None:
        self.table[1, slot] = count


class _NumpyView(_RowOfATable):
    def __init__(self, config: TargetConfig):
        super().__init__(config)
        self.num_accepted_tokens = torch.ones(config.max_num_reqs, dtype=torch.int32)
        self.array = self.num_accepted_tokens.numpy()

    def write(self, slot: int, count: int) -> None:
        self.array[slot] = count


class _ReadOnly(_RowOfATable):
    """Hands its counts out, and takes none in."""

    num_accepted_tokens = property(lambda self: self.own)  # type: ignore[assignment]

    def __init__(self, config: TargetConfig):
        self.config = config
        self.own = torch.ones(config.max_num_reqs, dtype=torch.int32)
        self.handed_on = [self.own]

    def add_request(self, req_idx: int, num_computed_tokens: int) -> None:
        self.own[req_idx] = 1

    def preprocess_state(self, *args: Any) -> None: ...

    def write(self, slot: int, count: int) -> None:
        self.handed_on[0][slot] = count


class _StrayThroughProperty(_ReadOnly):
    def write(self, slot: int, count: int) -> None:
        super().write(slot, count)
        if self.config.pp_rank == 1:
            self.own.as_strided((1,), (1,), self.own.storage_offset() - 3)[0] = count


class RowOfATable(BuiltinTarget):
    mamba_state_class = _RowOfATable


class NumpyView(BuiltinTarget):
    mamba_state_class = _NumpyView


class ReadOnly(BuiltinTarget):
    mamba_state_class = _ReadOnly


class StrayThroughProperty(BuiltinTarget):
    mamba_state_class = _StrayThroughProperty


class _Floats(BuiltinMambaState):
    def __init__(self, config: TargetConfig):
        super().__init__(config)
        self.num_accepted_tokens = self.num_accepted_tokens.float()


class _Grows(_RowOfATable):
    def postprocess_state(self, idx_mapping: torch.Tensor, num_sampled: Any, *more: Any) -> None:
        super().postprocess_state(idx_mapping, num_sampled, *more)
        if self.config.pp_rank == 1:
            self.num_accepted_tokens = torch.cat([self.num_accepted_tokens] * 2)


class _Vanishes(_RowOfATable):
    def preprocess_state(self, *args: Any) -> None:
        if self.config.pp_rank == 1:
            self.num_accepted_tokens = None  # type: ignore[assignment]


class _FloatCounts(BuiltinTokenRelay):
    def get_prev_sampled_outputs(self) -> Any:
        outputs = super().get_prev_sampled_outputs()
        if outputs is not None and self.config.pp_rank == 1:
            outputs.num_sampled = outputs.num_sampled.float()
        return outputs


class _Tuples(BuiltinTokenRelay):
    def get_prev_sampled_outputs(self) -> Any:
        outputs = super().get_prev_sampled_outputs()
        return None if outputs is None else tuple(vars(outputs).values())


class Floats(BuiltinTarget):
    mamba_state_class = _Floats


class Grows(BuiltinTarget):
    mamba_state_class = _Grows


class Vanishes(BuiltinTarget):
    mamba_state_class = _Vanishes


class FloatCounts(BuiltinTarget):
    token_relay_class = _FloatCounts


class Tuples(BuiltinTarget):
    token_relay_class = _Tuples


class _ThreadDies(BuiltinMambaState):
    """Copies in a thread that raises once the last step is over."""

    def postprocess_state(self, *args: Any) -> None:
        super().postprocess_state(*args)
        if self.config.pp_rank == 1 and args[0].numel() == 1:
            threading.Thread(target=self._copy, name="copier").start()

    def _copy(self) -> None:
        time.sleep(0.2)
        raise ValueError("the copy did not end well")


class ThreadDies(BuiltinTarget):
    mamba_state_class = _ThreadDies
