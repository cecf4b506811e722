"""Align mode: recurrent state kept in blocks, moved on as a sequence grows.

One program handles a block of rows and all state tensors of a row, so that every
decision is made once, from one reading of the accepted count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import triton
import triton.language as tl

from .num_accepted import launch_shape


class Recurrent(Protocol):
    """The blocks that state lives in (see ``targets.interface.RecurrentStates``)."""

    conv: torch.Tensor  # [num_blocks, window + K]
    temporal: torch.Tensor  # [num_blocks]
    block_table: torch.Tensor  # [max_num_reqs, num_columns]
    block_size: int
    window: int


@dataclass
class AlignTables:
    """Which column of its block table each slot runs in."""

    state_idx: torch.Tensor  # [max_num_reqs] int32, -1 before the first step
    recurrent: Recurrent

    @classmethod
    def create(cls, max_num_reqs: int, recurrent: Recurrent) -> AlignTables:
        device = recurrent.conv.device
        state_idx = torch.full((max_num_reqs,), -1, dtype=torch.int32, device=device)
        return cls(state_idx, recurrent)


@triton.jit
def _copy_state(
    block_table_ptr, table_stride, conv_ptr, conv_stride, temporal_ptr,
    slot, src_column, dst_column, bias, moves,
    WINDOW: tl.constexpr,
    WINDOW_BLOCK: tl.constexpr,
):  # fmt: skip
    """State of `slot` from `src_column`, `bias` tokens in, to the head of `dst_column`."""
    table = block_table_ptr + slot * table_stride
    src = tl.load(table + src_column, mask=moves, other=0).to(tl.int64)
    dst = tl.load(table + dst_column, mask=moves, other=0).to(tl.int64)
    token_src = tl.load(table + src_column + bias, mask=moves, other=0).to(tl.int64)
    lane = tl.arange(0, WINDOW_BLOCK)[None, :]
    wide = moves[:, None] & (lane < WINDOW)
    conv = tl.load(conv_ptr + (src * conv_stride + bias)[:, None] + lane, mask=wide, other=0)
    temporal = tl.load(temporal_ptr + token_src, mask=moves, other=0)
    tl.debug_barrier()  # a shift within one block: read all before anything is written
    tl.store(conv_ptr + (dst * conv_stride)[:, None] + lane, conv, mask=wide)
    tl.store(temporal_ptr + dst, temporal, mask=moves)


@triton.jit(do_not_specialize=["num_reqs"])
def _preprocess_align_kernel(
    idx_mapping_ptr,  # [num_reqs] batch row -> slot, negative = skip
    query_start_loc_ptr,  # [num_reqs + 1]
    num_computed_ptr,  # [max_num_reqs] before the step
    num_accepted_ptr,  # [max_num_reqs]
    state_idx_ptr,  # [max_num_reqs]
    block_table_ptr, table_stride, conv_ptr, conv_stride, temporal_ptr,
    num_reqs,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    WINDOW_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ONE_PROGRAM: tl.constexpr = False,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    if not ONE_PROGRAM:
        row += tl.program_id(0) * ROWS
    in_batch = row < num_reqs
    slot = tl.load(idx_mapping_ptr + row, mask=in_batch, other=-1).to(tl.int64)
    valid = slot >= 0
    start = tl.load(query_start_loc_ptr + row, mask=in_batch, other=0)
    end = tl.load(query_start_loc_ptr + row + 1, mask=in_batch, other=0)
    computed = tl.load(num_computed_ptr + slot, mask=valid, other=0)
    accepted = tl.load(num_accepted_ptr + slot, mask=valid, other=1)
    src = tl.load(state_idx_ptr + slot, mask=valid, other=-1)
    dst = (computed + (end - start) + BLOCK_SIZE - 1) // BLOCK_SIZE - 1
    moves = valid & (src >= 0) & (src != dst)
    tl.store(state_idx_ptr + slot, dst, mask=valid)
    if tl.max(moves.to(tl.int32), axis=0) > 0:
        _copy_state(
            block_table_ptr, table_stride, conv_ptr, conv_stride, temporal_ptr,
            slot, src, dst, tl.maximum(accepted - 1, 0), moves, WINDOW, WINDOW_BLOCK,
        )  # fmt: skip
        tl.store(num_accepted_ptr + slot, 1, mask=moves)


@triton.jit(do_not_specialize=["num_reqs"])
def _postprocess_align_kernel(
    idx_mapping_ptr,  # [num_reqs] batch row -> slot, negative = skip
    num_computed_ptr,  # [max_num_reqs] after the step
    num_accepted_ptr,  # [max_num_reqs]
    state_idx_ptr,  # [max_num_reqs]
    block_table_ptr, table_stride, conv_ptr, conv_stride, temporal_ptr,
    num_reqs,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    WINDOW_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ONE_PROGRAM: tl.constexpr = False,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    if not ONE_PROGRAM:
        row += tl.program_id(0) * ROWS
    slot = tl.load(idx_mapping_ptr + row, mask=row < num_reqs, other=-1).to(tl.int64)
    valid = slot >= 0
    computed = tl.load(num_computed_ptr + slot, mask=valid, other=0)
    accepted = tl.load(num_accepted_ptr + slot, mask=valid, other=1)
    running = tl.load(state_idx_ptr + slot, mask=valid, other=-1)
    first = computed - accepted + 1  # tokens after the step's first one
    aligned = computed // BLOCK_SIZE * BLOCK_SIZE
    moves = valid & (aligned >= first) & (aligned > 0) & (running >= 0)
    if tl.max(moves.to(tl.int32), axis=0) > 0:
        dst = aligned // BLOCK_SIZE - 1
        _copy_state(
            block_table_ptr, table_stride, conv_ptr, conv_stride, temporal_ptr,
            slot, running, dst, aligned - first, moves, WINDOW, WINDOW_BLOCK,
        )  # fmt: skip
        tl.store(num_accepted_ptr + slot, 1, mask=moves & (dst == running))


def preprocess_align(
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed: torch.Tensor,
    num_accepted: torch.Tensor,
    tables: AlignTables,
) -> None:
    """Before a forward: rows that enter a new block take their state along.

    Args:
        idx_mapping: ``[num_reqs]`` int32 or int64; an empty batch is a no-op.
        query_start_loc: ``[num_reqs + 1]`` int32.
        num_computed: ``[max_num_reqs]`` int32, tokens before the step.
        num_accepted: ``[max_num_reqs]`` int32, set to 1 for rows that moved.
    """
    num_reqs, states = idx_mapping.shape[0], tables.recurrent
    if num_reqs == 0:
        return
    rows, options = launch_shape(num_reqs)
    _preprocess_align_kernel[(-(-num_reqs // rows),)](
        idx_mapping, query_start_loc, num_computed, num_accepted, tables.state_idx,
        states.block_table, states.block_table.stride(0),
        states.conv, states.conv.stride(0), states.temporal, num_reqs,
        BLOCK_SIZE=states.block_size, WINDOW=states.window,
        WINDOW_BLOCK=triton.next_power_of_2(states.window), ROWS=rows,
        ONE_PROGRAM=options.get("ONE_PROGRAM", False),
    )  # fmt: skip


def postprocess_align(
    idx_mapping: torch.Tensor,
    num_computed: torch.Tensor,
    num_accepted: torch.Tensor,
    tables: AlignTables,
) -> None:
    """After sampling: saves the state at the last block boundary that a row went past.

    Args:
        idx_mapping: ``[num_reqs]`` int32 or int64; an empty batch is a no-op.
        num_computed: ``[max_num_reqs]`` int32, tokens after the step.
        num_accepted: ``[max_num_reqs]`` int32, set to 1 where the saved state is the
            running one.
    """
    num_reqs, states = idx_mapping.shape[0], tables.recurrent
    if num_reqs == 0:
        return
    rows, options = launch_shape(num_reqs)
    _postprocess_align_kernel[(-(-num_reqs // rows),)](
        idx_mapping, num_computed, num_accepted, tables.state_idx,
        states.block_table, states.block_table.stride(0),
        states.conv, states.conv.stride(0), states.temporal, num_reqs,
        BLOCK_SIZE=states.block_size, WINDOW=states.window,
        WINDOW_BLOCK=triton.next_power_of_2(states.window), ROWS=rows,
        ONE_PROGRAM=options.get("ONE_PROGRAM", False),
    )  # fmt: skip
