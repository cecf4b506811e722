"""State modules that break exactly one rule each, and keep all others."""

from __future__ import annotations

import torch

from ppharness.targets import BuiltinMambaState, BuiltinTarget, TargetConfig
from ppharness.targets.interface import InputBatch


class LoopState(BuiltinMambaState):
    """Right: a loop over rows on the host, whose single parts the classes below spoil."""

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        rows = idx_mapping.tolist()
        scalar = isinstance(num_sampled, int)
        counts = [num_sampled] * len(rows) if scalar else num_sampled.tolist()
        self.write_rows(rows, counts, scalar)

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        for slot, count in zip(slots, counts, strict=True):
            if slot >= 0:
                self.num_accepted_tokens[slot] = max(count, 1)


class StoresZeroState(LoopState):
    """No maximum with 1 in the tensor branch."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        for slot, count in zip(slots, counts, strict=True):
            if slot >= 0:
                self.num_accepted_tokens[slot] = max(count, 1) if scalar else count


class StoresScalarZeroState(LoopState):
    """No maximum with 1 in the scalar branch."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        for slot, count in zip(slots, counts, strict=True):
            if slot >= 0:
                self.num_accepted_tokens[slot] = count if scalar else max(count, 1)


class CountsDraftsState(LoopState):
    """Stores the accepted drafts, one less than the accepted tokens."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        super().write_rows(slots, [count - 1 for count in counts], scalar)


class CountsDraftsOnPP1State(CountsDraftsState):
    """The same, on one stage only."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        on = self.config.pp_rank == 1
        (CountsDraftsState if on else LoopState).write_rows(self, slots, counts, scalar)


class FirstRowsState(LoopState):
    """One block of rows is all that it writes."""

    block = 1024

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        super().write_rows(slots[: self.block], counts[: self.block], scalar)


class FirstRows32State(FirstRowsState):
    block = 32


class FirstSlots32State(LoopState):
    """Takes the number of rows that it has room for as a bound of the slots."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        super().write_rows([s if s < 32 else -1 for s in slots], counts, scalar)


class CountsOneMoreState(LoopState):
    """Stores one more than was accepted, which leaves the range once all drafts are."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        super().write_rows(slots, [count + (not scalar) for count in counts], scalar)


class NoResetState(BuiltinMambaState):
    """A new owner finds what the last one left."""

    def add_request(self, req_idx: int, num_computed_tokens: int) -> None:
        return


class ResetsOtherSlotState(BuiltinMambaState):
    """Resets the slot below the one that is taken."""

    def add_request(self, req_idx: int, num_computed_tokens: int) -> None:
        super().add_request((req_idx - 1) % self.max_num_reqs, num_computed_tokens)


class ClearsOnRemoveState(BuiltinMambaState):
    """Clears the whole buffer, not one slot, when a request goes."""

    def remove_request(self, req_idx: int) -> None:
        self.num_accepted_tokens.fill_(1)


class WritesBeforeBufferState(LoopState):
    """A row at -1 is stored all the same: one place before the buffer."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        buffer = self.num_accepted_tokens
        start = buffer.storage_offset() - 1
        shifted = buffer.as_strided((buffer.numel() + 1,), (1,), start)
        for slot, count in zip(slots, counts, strict=True):
            shifted[slot + 1] = max(count, 1)


class WritesAfterBufferState(LoopState):
    """A row at -1 is sent to a spare place at the end, which nobody made."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        buffer = self.num_accepted_tokens
        longer = buffer.as_strided((buffer.numel() + 1,), (1,), buffer.storage_offset())
        for slot, count in zip(slots, counts, strict=True):
            longer[slot if slot >= 0 else buffer.numel()] = max(count, 1)


class WrapsState(LoopState):
    """A row at -1 counts from the end, as indices do in Python."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        for slot, count in zip(slots, counts, strict=True):
            self.num_accepted_tokens[slot] = max(count, 1)


class WritesNeighbourState(LoopState):
    """The tensor branch stores two counts where it should store one."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        super().write_rows(slots, counts, scalar)
        if not scalar:
            others = [slot ^ 1 if slot >= 0 else -1 for slot in slots]
            super().write_rows([s if s not in slots else -1 for s in others], counts, scalar)


class FirstTwoRowsState(LoopState):
    """A launch grid for two rows."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        super().write_rows(slots[:2], counts[:2], scalar)


class BoundsOnSlotState(LoopState):
    """The mask compares the slot, not the row, with the number of rows."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        kept = [slot if slot < len(slots) else -1 for slot in slots]
        super().write_rows(kept, counts, scalar)


class FirstRowForAllState(LoopState):
    """Every row gets the first row's count."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        super().write_rows(slots, counts[:1] * len(counts), scalar)


class ScalarOnLastRankState(LoopState):
    """The scalar branch does nothing on the ranks that take it."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        if not scalar or self.config.is_last_rank:
            super().write_rows(slots, counts, scalar)


class IgnoresTensorOnLastRankState(LoopState):
    """The last rank waits for a relay that it is the source of."""

    def write_rows(self, slots: list[int], counts: list[int], scalar: bool) -> None:
        if scalar or not self.config.is_last_rank:
            super().write_rows(slots, counts, scalar)


class WritesWhilePreparingState(BuiltinMambaState):
    """`preprocess_state` resets the rows of every batch."""

    def preprocess_state(self, batch: InputBatch, num_computed_tokens: torch.Tensor) -> None:
        for slot in batch.idx_mapping.tolist():
            if slot >= 0:
                self.num_accepted_tokens[slot] = 1


class LongBufferState(BuiltinMambaState):
    """One slot too many."""

    def __init__(self, config: TargetConfig):
        super().__init__(config)
        self.num_accepted_tokens = torch.ones(config.max_num_reqs + 1, dtype=torch.int32)


class StoresZero(BuiltinTarget):
    mamba_state_class = StoresZeroState


class StoresScalarZero(BuiltinTarget):
    mamba_state_class = StoresScalarZeroState


class CountsDrafts(BuiltinTarget):
    mamba_state_class = CountsDraftsState


class ExactCountsDrafts(CountsDrafts):
    exact = True


class CountsDraftsOnPP1(BuiltinTarget):
    mamba_state_class = CountsDraftsOnPP1State


class CountsOneMore(BuiltinTarget):
    mamba_state_class = CountsOneMoreState


class NoReset(BuiltinTarget):
    mamba_state_class = NoResetState


class ResetsOtherSlot(BuiltinTarget):
    mamba_state_class = ResetsOtherSlotState


class ClearsOnRemove(BuiltinTarget):
    mamba_state_class = ClearsOnRemoveState


class WritesBeforeBuffer(BuiltinTarget):
    mamba_state_class = WritesBeforeBufferState


class WritesAfterBuffer(BuiltinTarget):
    mamba_state_class = WritesAfterBufferState


class Wraps(BuiltinTarget):
    mamba_state_class = WrapsState


class WritesNeighbour(BuiltinTarget):
    mamba_state_class = WritesNeighbourState


class FirstTwoRows(BuiltinTarget):
    mamba_state_class = FirstTwoRowsState


class BoundsOnSlot(BuiltinTarget):
    mamba_state_class = BoundsOnSlotState


class FirstRowForAll(BuiltinTarget):
    mamba_state_class = FirstRowForAllState


class ScalarOnLastRank(BuiltinTarget):
    mamba_state_class = ScalarOnLastRankState


class ExactScalarOnLastRank(ScalarOnLastRank):
    exact = True


class IgnoresTensorOnLastRank(BuiltinTarget):
    mamba_state_class = IgnoresTensorOnLastRankState


class WritesWhilePreparing(BuiltinTarget):
    mamba_state_class = WritesWhilePreparingState


class LongBuffer(BuiltinTarget):
    mamba_state_class = LongBufferState


class FirstRows(BuiltinTarget):
    mamba_state_class = FirstRowsState


class FirstRows32(BuiltinTarget):
    mamba_state_class = FirstRows32State


class FirstSlots32(BuiltinTarget):
    mamba_state_class = FirstSlots32State
