"""Fill and scatter of the accepted counts.

Both take the mapping as it is, int32 or int64, and skip negative rows.  They are
vectorised over rows, read nothing back and allocate nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

INTERPRETED = triton.knobs.runtime.interpret if hasattr(triton, "knobs") else False
# Rows and warps of a program on a GPU, measured by scripts/tune_kernels.py on an H200:
# small, so that the latency of the stores is spread over many of its processors.
_GPU_SHAPE, _GPU_SHAPE_OF_MANY, _MANY_ROWS = (128, 4), (256, 8), 4096
_MAX_ROWS_PER_PROGRAM = 65_536


@triton.jit(do_not_specialize=["num_reqs", "num_sampled"])
def _fill_num_accepted_kernel(
    idx_mapping_ptr,  # [num_reqs] batch row -> slot, negative = skip
    num_accepted_ptr,  # [max_num_reqs]
    num_sampled,
    num_reqs,
    ROWS: tl.constexpr,
    ONE_PROGRAM: tl.constexpr = False,  # under the interpreter each operation costs 0.1 ms
    OVERLAP: tl.constexpr = False,  # launched before the kernel ahead of it has ended
):
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # nothing is read or written before that one has ended
    row = tl.arange(0, ROWS)
    if not ONE_PROGRAM:
        row += tl.program_id(0) * ROWS
    slot = tl.load(idx_mapping_ptr + row, mask=row < num_reqs, other=-1)
    tl.store(num_accepted_ptr + slot, num_sampled, mask=slot >= 0)


@triton.jit(do_not_specialize=["num_reqs"])
def _scatter_num_accepted_kernel(
    idx_mapping_ptr,  # [num_reqs] batch row -> slot, negative = skip
    num_sampled_ptr,  # [num_reqs]
    num_accepted_ptr,  # [max_num_reqs]
    num_reqs,
    ROWS: tl.constexpr,
    ONE_PROGRAM: tl.constexpr = False,  # under the interpreter each operation costs 0.1 ms
    OVERLAP: tl.constexpr = False,  # launched before the kernel ahead of it has ended
):
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # nothing is read or written before that one has ended
    row = tl.arange(0, ROWS)
    if not ONE_PROGRAM:
        row += tl.program_id(0) * ROWS
    in_batch = row < num_reqs
    slot = tl.load(idx_mapping_ptr + row, mask=in_batch, other=-1)
    count = tl.load(num_sampled_ptr + row, mask=in_batch)
    tl.store(num_accepted_ptr + slot, tl.maximum(count, 1), mask=slot >= 0)


def launch_shape(num_reqs: int) -> tuple[int, dict[str, Any]]:
    """Rows that one program handles, and what else a launch is given."""
    if INTERPRETED:  # all rows, since a program instance costs about 0.3 ms
        rows = min(triton.next_power_of_2(max(num_reqs, 16)), _MAX_ROWS_PER_PROGRAM)
        return rows, {"ONE_PROGRAM": num_reqs <= rows}
    rows, warps = _GPU_SHAPE if num_reqs < _MANY_ROWS else _GPU_SHAPE_OF_MANY
    return rows, _launch_options(warps)


@cache
def _launch_options(num_warps: int) -> dict[str, Any]:
    """From Hopper on, a launch need not wait for the kernel ahead: it costs half as much."""
    if (
        torch.version.cuda is None
        or not hasattr(tl.extra.cuda, "gdc_wait")
        or torch.cuda.get_device_capability() < (9, 0)
    ):
        return {"num_warps": num_warps}
    return {"num_warps": num_warps, "OVERLAP": True, "launch_pdl": True}


def fill_num_accepted(
    idx_mapping: torch.Tensor, num_accepted: torch.Tensor, num_sampled: int
) -> None:
    """``num_accepted[slot] = max(num_sampled, 1)`` for every row with a slot.

    Args:
        idx_mapping: ``[num_reqs]`` int32 or int64, contiguous.
        num_accepted: ``[max_num_reqs]`` int32, written in place.
        num_sampled: one count for all rows; an empty batch is a no-op.
    """
    num_reqs = idx_mapping.shape[0]
    if num_reqs:
        rows, options = launch_shape(num_reqs)
        _fill_num_accepted_kernel[(-(-num_reqs // rows),)](
            idx_mapping,
            num_accepted,
            max(num_sampled, 1),
            num_reqs,
            ROWS=rows,
            **options,
        )


def scatter_num_accepted(
    idx_mapping: torch.Tensor, num_accepted: torch.Tensor, num_sampled: torch.Tensor
) -> None:
    """``num_accepted[slot] = max(num_sampled[row], 1)`` for every row with a slot.

    Args:
        idx_mapping: ``[num_reqs]`` int32 or int64, contiguous.
        num_accepted: ``[max_num_reqs]`` int32, written in place.
        num_sampled: ``[num_reqs]`` integers, contiguous; an empty batch is a no-op.
    """
    num_reqs = idx_mapping.shape[0]
    if num_reqs:
        rows, options = launch_shape(num_reqs)
        _scatter_num_accepted_kernel[(-(-num_reqs // rows),)](
            idx_mapping,
            num_sampled,
            num_accepted,
            num_reqs,
            ROWS=rows,
            **options,
        )


def warm_up() -> None:
    """Runs both kernels once on the CPU, so that forked ranks need not prepare them again."""
    idx_mapping = torch.zeros(1, dtype=torch.int32)
    fill_num_accepted(idx_mapping, torch.ones_like(idx_mapping), 1)
    scatter_num_accepted(idx_mapping, torch.ones_like(idx_mapping), idx_mapping)
