"""What the kernels are measured against: an empty one, and the form with a program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .num_accepted import (
    _fill_num_accepted_kernel,
    _scatter_num_accepted_kernel,
    launch_shape,
)


@triton.jit
def _empty_kernel(ptr):
    pass


@triton.jit(do_not_specialize=["num_sampled"])
def _fill_row_kernel(idx_mapping_ptr, num_accepted_ptr, num_sampled):
    slot = tl.load(idx_mapping_ptr + tl.program_id(0))
    if slot >= 0:
        tl.store(num_accepted_ptr + slot, num_sampled)


@triton.jit
def _scatter_row_kernel(idx_mapping_ptr, num_sampled_ptr, num_accepted_ptr):
    row = tl.program_id(0)
    slot = tl.load(idx_mapping_ptr + row)
    if slot >= 0:
        count = tl.load(num_sampled_ptr + row)
        tl.store(num_accepted_ptr + slot, tl.maximum(count, 1))


def empty(tensor: torch.Tensor) -> None:
    """A launch that does nothing."""
    _empty_kernel[(1,)](tensor)


def fill_by_row(idx_mapping: torch.Tensor, num_accepted: torch.Tensor) -> None:
    """As vLLM 0.28.0 does it."""
    _fill_row_kernel[(idx_mapping.shape[0],)](idx_mapping, num_accepted, 1)


def scatter_by_row(
    idx_mapping: torch.Tensor, num_accepted: torch.Tensor, counts: torch.Tensor
) -> None:
    """As vLLM does it."""
    _scatter_row_kernel[(idx_mapping.shape[0],)](idx_mapping, counts, num_accepted)


def bare_fill(idx_mapping: torch.Tensor, num_accepted: torch.Tensor, rows: int) -> None:
    """The launch of our own kernel with nothing around it."""
    block, options = launch_shape(rows)
    _fill_num_accepted_kernel[(-(-rows // block),)](
        idx_mapping, num_accepted, 1, rows, ROWS=block, **options
    )


def bare_scatter(
    idx_mapping: torch.Tensor, num_accepted: torch.Tensor, counts: torch.Tensor, rows: int
) -> None:
    """The launch of our own kernel with nothing around it."""
    block, options = launch_shape(rows)
    _scatter_num_accepted_kernel[(-(-rows // block),)](
        idx_mapping, counts, num_accepted, rows, ROWS=block, **options
    )
