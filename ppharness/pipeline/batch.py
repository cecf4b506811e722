"""The fake InputBatch of one step on one rank, and the index tensors beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..scenario.schedule import Row, Step
from ..targets.interface import InputBatch
from ..world.device_fault import raise_if_broken


@dataclass
class StepTensors:
    """What the model needs to know of a step, on the device; all int64."""

    row: torch.Tensor  # [num_tokens] batch row of each token
    index: torch.Tensor  # [num_tokens] place within its row
    input_ids: torch.Tensor  # [num_tokens] token ids; a decode row's first one is filled in later
    req_num: torch.Tensor  # [num_tokens] request number, goes along with the hidden state
    start: torch.Tensor  # [num_reqs] first token of the row
    num_scheduled: torch.Tensor  # [num_reqs]
    skip: torch.Tensor  # [num_reqs] tokens whose state is not kept: all but the last of a chunk
    first_logit: torch.Tensor  # [num_reqs] first token that is sampled from
    num_computed: torch.Tensor  # [num_reqs] true count before the step, for rows without a slot
    num_sampled: torch.Tensor  # [num_reqs]
    num_rejected: torch.Tensor  # [num_reqs]
    slot: torch.Tensor  # [num_reqs] -1 = filtered out on this rank
    decodes: torch.Tensor  # [num_reqs] 1 = takes its first token from the last sample
    num_drafts: int  # over the batch

    TENSORS: ClassVar = (
        "row", "index", "input_ids", "req_num", "start", "num_scheduled", "skip",
        "first_logit", "num_computed", "num_sampled", "num_rejected", "slot", "decodes",
    )  # fmt: skip


def make_step_tensors(
    step: Step, slots: np.ndarray, input_ids: np.ndarray, device: torch.device
) -> StepTensors:
    """Everything in one upload.

    Args:
        slots: ``[num_reqs]`` as this rank's mapping holds them.
        input_ids: ``[num_tokens]`` prompt tokens and drafts.
    """
    rows = step.rows
    scheduled = np.array([r.num_scheduled_tokens for r in rows], dtype=np.int64)
    start = np.concatenate([[0], np.cumsum(scheduled)[:-1]])
    row = np.repeat(np.arange(len(rows)), scheduled)
    decodes = np.array([not r.is_prefilling for r in rows])
    drafts = np.array([r.num_draft_tokens for r in rows])
    per_token = [
        row,
        np.arange(len(row)) - start[row],
        input_ids,
        np.array([r.req_num for r in rows])[row],
    ]
    per_row = [
        start,
        scheduled,
        np.where(decodes, 0, scheduled - 1),
        start + scheduled - 1 - drafts,
        np.array([r.num_computed_tokens for r in rows]),
        np.array([r.num_sampled for r in rows]),
        np.array([r.num_rejected for r in rows]),
        slots,
        decodes,
    ]
    packed = torch.from_numpy(np.concatenate([*per_token, *per_row]).astype(np.int64))
    packed = to_device(packed, device)
    sizes = [len(row)] * len(per_token) + [len(rows)] * len(per_row)
    parts = dict(zip(StepTensors.TENSORS, packed.split(sizes), strict=True))
    return StepTensors(num_drafts=step.num_draft_tokens, **parts)


def make_input_batch(
    step: Step,
    slots: np.ndarray,
    num_computed_host: np.ndarray,
    idx_mapping_dtype: torch.dtype,
    tensors: StepTensors,
    num_computed: torch.Tensor,
) -> InputBatch:
    """The batch that the target sees.

    Args:
        slots: ``[num_reqs]``, -1 for rows filtered out on this rank.
        num_computed_host: ``[num_reqs]`` the host's optimistic mirror.
        num_computed: ``[num_reqs]`` the device's own count per row.
    """
    rows = step.rows
    drafts = _int32(rows, "num_draft_tokens")
    scheduled = _int32(rows, "num_scheduled_tokens")
    prefill_len = _int32(rows, "prefill_len")
    query_start_loc_np = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(scheduled, out=query_start_loc_np[1:])
    query_start_loc = torch.zeros(len(rows) + 1, dtype=torch.int32, device=num_computed.device)
    torch.cumsum(tensors.num_scheduled, 0, out=query_start_loc[1:])
    wide = idx_mapping_dtype == torch.int64
    return InputBatch(
        req_ids=[r.req_id for r in rows],
        num_reqs=len(rows),
        num_tokens=step.num_tokens,
        idx_mapping=tensors.slot.to(idx_mapping_dtype, copy=True),
        idx_mapping_np=slots.astype(np.intp if wide else np.int32),
        query_start_loc=query_start_loc,
        query_start_loc_np=query_start_loc_np,
        seq_lens=(num_computed + tensors.num_scheduled).to(torch.int32),
        num_scheduled_tokens=scheduled,
        num_computed_tokens_np=num_computed_host,
        prefill_len_np=prefill_len,
        num_computed_prefill_tokens_np=np.minimum(num_computed_host, prefill_len),
        max_seq_len_np=_int32(rows, "max_seq_len"),
        is_prefilling_np=num_computed_host < prefill_len,
        num_draft_tokens=step.num_draft_tokens,
        num_draft_tokens_per_req=drafts if drafts.any() else None,
        input_ids=tensors.input_ids.to(torch.int32),
        positions=num_computed[tensors.row] + tensors.index,
        step=step.index,
    )


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on the device, without waiting for the copy."""
    if device.type == "cpu":
        return tensor
    pinned = tensor.pin_memory()
    copied = pinned.to(device, non_blocking=True)
    raise_if_broken(device)
    return copied


def _int32(rows: tuple[Row, ...], name: str) -> np.ndarray:
    return np.array([getattr(r, name) for r in rows], dtype=np.int32)
