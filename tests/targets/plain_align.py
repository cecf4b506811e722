"""Align mode in plain torch, one row after another, as ``protocol.md`` tells it."""

from __future__ import annotations

import torch

from ppharness.targets import BuiltinMambaState
from ppharness.targets.interface import InputBatch


class PlainAlignState(BuiltinMambaState):
    """Counts and blocks in loops over the rows on the host; nothing of the kernels."""

    def preprocess_state(self, batch: InputBatch, num_computed_tokens: torch.Tensor) -> None:
        if self.align is None:
            return
        lengths = batch.query_start_loc.diff().tolist()
        for slot, length in zip(batch.idx_mapping.tolist(), lengths, strict=True):
            if slot >= 0:
                end = int(num_computed_tokens[slot]) + length
                self.enter(slot, -(-end // self.config.mamba_block_size) - 1)

    def enter(self, slot: int, column: int) -> None:
        """The running block of a slot is `column` from here on."""
        assert self.align is not None
        source = int(self.align.state_idx[slot])
        if source >= 0 and source != column:
            bias = max(int(self.num_accepted_tokens[slot]) - 1, 0)
            self.copy_conv(slot, source, column, bias)
            self.copy_temporal(slot, source, column, bias)
            self.num_accepted_tokens[slot] = 1
        self.align.state_idx[slot] = column

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        slots = idx_mapping.tolist()
        if isinstance(num_sampled, int):
            counts = [num_sampled] * len(slots)
        else:
            counts = num_sampled.tolist()
        for slot, count in zip(slots, counts, strict=True):
            if slot >= 0:
                self.num_accepted_tokens[slot] = max(count, 1)
                if self.align is not None and num_computed_tokens is not None:
                    self.save(slot, int(num_computed_tokens[slot]))

    def save(self, slot: int, computed: int) -> None:
        """Saves the state at the last block boundary, if the step went past one."""
        assert self.align is not None
        block_size = self.config.mamba_block_size
        running = int(self.align.state_idx[slot])
        first = computed - int(self.num_accepted_tokens[slot]) + 1
        aligned = computed // block_size * block_size
        if aligned < max(first, 1) or running < 0:
            return
        column = aligned // block_size - 1
        self.copy_conv(slot, running, column, aligned - first)
        self.copy_temporal(slot, running, column, aligned - first)
        if column == running:
            self.num_accepted_tokens[slot] = 1

    def copy_conv(self, slot: int, source: int, column: int, bias: int) -> None:
        assert self.align is not None
        states = self.align.recurrent
        table = states.block_table[slot].tolist()
        window = states.conv[table[source], bias : bias + states.window].clone()
        states.conv[table[column], : states.window] = window

    def copy_temporal(self, slot: int, source: int, column: int, bias: int) -> None:
        assert self.align is not None
        states = self.align.recurrent
        table = states.block_table[slot].tolist()
        states.temporal[table[column]] = states.temporal[table[source + bias]].clone()
