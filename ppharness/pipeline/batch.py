"""The fake InputBatch of one step on one rank."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ..scenario.model import Scenario
from ..scenario.schedule import Step
from ..targets.interface import InputBatch, Target
from .step_tensors import StepTensors


def mapping_dtype_of(scenario: Scenario, target: Target) -> torch.dtype:
    """The dtype that the scenario pins for `idx_mapping`, else the target's own."""
    pinned = scenario.idx_mapping_dtype
    if pinned is None:
        return target.idx_mapping_dtype()
    return {"int32": torch.int32, "int64": torch.int64}[pinned]


def make_input_batch(
    step: Step,
    columns: Mapping[str, np.ndarray],
    slots: np.ndarray,
    num_computed_host: np.ndarray,
    idx_mapping_dtype: torch.dtype,
    tensors: StepTensors,
    num_computed: torch.Tensor,
) -> InputBatch:
    """The batch that the target sees.

    Args:
        columns: the step's `row_columns`.
        slots: ``[num_reqs]``, -1 for rows filtered out on this rank.
        num_computed_host: ``[num_reqs]`` the host's optimistic mirror.
        num_computed: ``[num_reqs]`` the device's own count per row.
    """
    rows = step.rows
    narrow = {name: column.astype(np.int32) for name, column in columns.items()}
    drafts, scheduled = narrow["num_draft_tokens"], narrow["num_scheduled_tokens"]
    prefill_len = narrow["prefill_len"]
    query_start_loc_np = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(scheduled, out=query_start_loc_np[1:])
    wide = idx_mapping_dtype == torch.int64
    return InputBatch(
        req_ids=[r.req_id for r in rows],
        num_reqs=len(rows),
        num_tokens=step.num_tokens,
        idx_mapping=tensors.block_row.to(idx_mapping_dtype, copy=True),
        idx_mapping_np=slots.astype(np.intp if wide else np.int32),
        query_start_loc=tensors.query_start_loc,
        query_start_loc_np=query_start_loc_np,
        seq_lens=num_computed + tensors.num_scheduled,
        num_scheduled_tokens=scheduled,
        num_computed_tokens_np=num_computed_host,
        prefill_len_np=prefill_len,
        num_computed_prefill_tokens_np=np.minimum(num_computed_host, prefill_len),
        max_seq_len_np=narrow["max_seq_len"],
        is_prefilling_np=num_computed_host < prefill_len,
        num_draft_tokens=step.num_draft_tokens,
        num_draft_tokens_per_req=drafts if drafts.any() else None,
        input_ids=tensors.input_ids_32,
        positions=num_computed[tensors.shape.row] + tensors.shape.index,
        step=step.index,
    )
