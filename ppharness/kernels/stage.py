"""One stage of the fake hybrid model in one launch; ``pipeline.model`` defines it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TOKENS = (8, 64, 512, 4096, 32_768)  # of a row, so that few forms are compiled


# Parts of one upload, so their alignment changes from step to step.
_PER_ROW = ("start_ptr", "num_scheduled_ptr", "skip_ptr", "slot_ptr")


@triton.jit(
    do_not_specialize=["x_stride", "bias", "spare", "num_columns", "block_size", "last"],
    do_not_specialize_on_alignment=["x_ptr", "y_ptr", "history_ptr", *_PER_ROW],
)
def _stage_kernel(
    x_ptr, x_stride,  # [num_tokens] from the stage before
    y_ptr,  # [num_tokens] for the next one
    history_ptr,  # [num_tokens] scratch
    start_ptr, num_scheduled_ptr, skip_ptr, slot_ptr, num_accepted_ptr, num_computed_ptr,
    table_ptr, table_stride, conv_ptr, conv_stride, temporal_ptr,
    decay_ptr, inverse_ptr,  # [n] DECAY ** n and its inverse
    bias, spare, num_columns, block_size,
    last,  # K, the most drafts of a row
    GAIN: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    WINDOW: tl.constexpr,
    LANES: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    start, n = tl.load(start_ptr + row), tl.load(num_scheduled_ptr + row)
    skip, slot = tl.load(skip_ptr + row), tl.load(slot_ptr + row)
    accepted = tl.load(num_accepted_ptr + row).to(tl.int64)
    computed = tl.load(num_computed_ptr + row).to(tl.int64)
    table = table_ptr + tl.where(slot < 0, spare, slot) * table_stride
    column = (computed + n - 1) // block_size  # block_size is past any length but in align mode
    column = tl.minimum(tl.maximum(column, 0), num_columns - last - 1)
    shift = tl.minimum(tl.maximum(accepted, 1), last + 1) - 1
    known = (computed > 0) & (slot >= 0)
    head = tl.load(table + column).to(tl.int64)
    window = conv_ptr + head * conv_stride
    before = tl.load(temporal_ptr + tl.load(table + column + shift).to(tl.int64))
    before = tl.where(known, before, 0)

    t = tl.arange(0, TOKENS)
    inside = t < n
    x = tl.load(x_ptr + (start + t) * x_stride, mask=inside, other=0)
    u = x + bias
    for lag in tl.static_range(1, WINDOW + 1):
        own = tl.load(x_ptr + (start + t - lag) * x_stride, mask=inside & (t >= lag), other=0)
        old = tl.load(window + shift + WINDOW + t - lag, mask=inside & (t < lag), other=0)
        old = tl.where(known, old, 0)
        weight = W0 if lag == 1 else (W1 if lag == 2 else W2)
        u += weight * (own + old)
    inverse = tl.load(inverse_ptr + t + 1, mask=inside, other=0)
    history = tl.load(decay_ptr + t + 1, mask=inside, other=0) * (before + tl.cumsum(u * inverse))
    y = x + GAIN * history
    tl.store(y_ptr + start + t, y ^ (y >> 29), mask=inside)
    tl.store(history_ptr + start + t, history, mask=inside)

    lane = tl.arange(0, LANES)
    since = skip + 1 + lane - WINDOW  # index in the row's tokens
    kept = lane < WINDOW + last
    token = tl.load(
        x_ptr + (start + since) * x_stride, mask=kept & (since >= 0) & (since < n), other=0
    )
    old = tl.load(window + shift + since + WINDOW, mask=kept & (since < 0), other=0)
    old = tl.where(known, old, 0)
    at = skip + lane  # the token after which a temporal state is kept
    wanted = (lane <= last) & (at < n)
    block = tl.load(table + column + lane, mask=wanted, other=0).to(tl.int64)
    tl.debug_barrier()  # all is read before it is written; the history is written
    value = tl.load(history_ptr + start + at, mask=wanted, other=0)
    tl.store(window + lane, token + old, mask=kept)
    tl.store(temporal_ptr + block, value, mask=wanted)


def run_stage(
    x: torch.Tensor,
    per_row: tuple[torch.Tensor, ...],
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    powers: tuple[torch.Tensor, torch.Tensor],
    *,
    bias: int,
    spare: int,
    block_size: int,
    num_drafts: int,
    gain: int,
    weights: tuple[int, int, int],
    longest: int,
) -> torch.Tensor:
    """``[num_tokens]`` int64 out, from as many in; the recurrent states are updated in place.

    Args:
        per_row: each ``[num_reqs]``: start, num_scheduled, skip, slot (-1 = none),
            num_accepted, num_computed.
        states: block table, convolution windows, temporal states.
        powers: ``DECAY ** n`` and ``DECAY ** -n``.
        block_size: tokens of a block in align mode, more than any length without.
        longest: tokens of the longest row.
    """
    table, conv, temporal = states
    y = torch.empty(2 * x.shape[0], dtype=torch.int64, device=x.device)
    y, history = y.chunk(2)
    tokens = next(n for n in _TOKENS if n >= longest)
    lanes = triton.next_power_of_2(max(conv.shape[1], num_drafts + 1, 8))
    _stage_kernel[(per_row[0].shape[0],)](
        x, x.stride(0), y, history, *per_row,
        table, table.stride(0), conv, conv.stride(0), temporal, *powers,
        bias, spare, table.shape[1], block_size, num_drafts,
        GAIN=gain, W0=weights[0], W1=weights[1], W2=weights[2],
        WINDOW=len(weights), LANES=lanes, TOKENS=tokens,
    )  # fmt: skip
    return y
