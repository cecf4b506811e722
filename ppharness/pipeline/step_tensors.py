"""A step's numbers on the device: worked out on the host, sent in one copy.

What follows from the schedule alone (which token is where, what is looked up where) is
NumPy's work: an operation on a device costs many times as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter

import numpy as np
import torch

from ..oracle.reference import DECAY, WINDOW
from ..scenario.schedule import Step
from ..world.device_fault import raise_if_broken

_PADDING = np.zeros(4, dtype=np.int32)  # to 16 bytes: Triton compiles anew for pointers at less
_MAX_SHAPES = 16
_COLUMNS = (
    "req_num", "slot", "prefill_len", "max_seq_len", "num_computed_tokens",
    "num_computed_tokens_host", "num_scheduled_tokens", "num_draft_tokens", "num_sampled",
    "num_rejected",
)  # fmt: skip
_columns_of = attrgetter(*_COLUMNS)


def row_columns(step: Step) -> dict[str, np.ndarray]:
    """``[num_reqs]`` int64 for each number that a step's rows have."""
    table = np.array([_columns_of(row) for row in step.rows], dtype=np.int64)
    return dict(zip(_COLUMNS, table.T, strict=True))


@dataclass(frozen=True)
class BatchShape:
    """What follows from how many tokens of what kind each row has; int64.

    `taps` and `window` are places in the rows' windows before the step, one after the
    other, then x of all tokens, then a zero.
    """

    row: torch.Tensor  # [num_tokens] row of each token
    index: torch.Tensor  # [num_tokens] place within it
    decay: torch.Tensor  # [num_tokens] DECAY ** (index + 1)
    inverse: torch.Tensor  # [num_tokens] of that, modulo 2**64
    taps: torch.Tensor  # [WINDOW + 1, num_tokens] a token's x and those before it
    start: torch.Tensor  # [num_reqs] first token
    window: torch.Tensor  # [num_reqs, WINDOW + K] a row's window after the step
    # States to keep: after each token of a decode row, after the last one of a chunk
    kept: torch.Tensor  # [num_reqs, K + 1] tokens
    kept_column: torch.Tensor  # [num_reqs, K + 1] running columns, K + 1 for none
    picked: torch.Tensor  # [num_reqs, 1 or K + 1] tokens that are sampled from
    is_picked: torch.Tensor  # [num_reqs, 1 or K + 1] 0 where nothing is
    row_np: np.ndarray
    start_np: np.ndarray


@dataclass(frozen=True)
class StepTensors:
    """What a stage needs to know of a step, on the device; int64 unless said."""

    shape: BatchShape
    input_ids: torch.Tensor  # [num_tokens]; decode rows' first ones come from the last sample
    req_num: torch.Tensor  # [num_tokens] goes along with the hidden state
    slot: torch.Tensor  # [num_reqs] 0 where a row has none
    block_row: torch.Tensor  # [num_reqs] its row of a block table; the last one is spare
    decode_start: torch.Tensor  # [num_decodes] first tokens of rows that go on from a sample
    decode_slot: torch.Tensor  # [num_decodes] and their slots
    # int32, which the target may see
    query_start_loc: torch.Tensor  # [num_reqs + 1]
    input_ids_32: torch.Tensor  # [num_tokens]
    num_scheduled: torch.Tensor  # [num_reqs]
    num_computed: torch.Tensor  # [num_reqs] true count before the step
    num_sampled: torch.Tensor  # [num_reqs]
    num_rejected: torch.Tensor  # [num_reqs]
    all_have_slots: bool


class StepTensorMaker:
    """Makes them; batches of one shape, as in decoding, share what follows from it."""

    def __init__(self, num_speculative_tokens: int, device: torch.device):
        self.k, self.device = num_speculative_tokens, device
        self._shapes: dict[tuple[bytes, ...], BatchShape] = {}  # the last few

    def make(
        self, columns: Mapping[str, np.ndarray], slots: np.ndarray, input_ids: np.ndarray
    ) -> StepTensors:
        """Everything that is new in one upload.

        Args:
            columns: the step's `row_columns`.
            slots: ``[num_reqs]`` as this rank's mapping holds them, -1 = filtered out.
            input_ids: ``[num_tokens]`` prompt tokens and drafts.
        """
        scheduled, sampled = columns["num_scheduled_tokens"], columns["num_sampled"]
        decodes = columns["num_computed_tokens"] >= columns["prefill_len"]
        shape = self._shape_of(scheduled, columns["num_draft_tokens"], sampled, decodes)
        fed_back = decodes & (slots >= 0)
        wide = {
            "input_ids": input_ids, "req_num": columns["req_num"][shape.row_np],
            "slot": np.maximum(slots, 0), "block_row": slots,
            "decode_start": shape.start_np[fed_back], "decode_slot": slots[fed_back],
        }  # fmt: skip
        narrow = {
            "query_start_loc": np.append(shape.start_np, len(input_ids)),
            "input_ids_32": input_ids, "num_scheduled": scheduled,
            "num_computed": columns["num_computed_tokens"], "num_sampled": sampled,
            "num_rejected": columns["num_rejected"],
        }  # fmt: skip
        tensors = _upload(wide, narrow, self.device)
        return StepTensors(shape, **tensors, all_have_slots=bool((slots >= 0).all()))

    def _shape_of(self, *parts: np.ndarray) -> BatchShape:
        key = tuple(part.tobytes() for part in parts)
        if key not in self._shapes:
            if len(self._shapes) == _MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = self._make_shape(*parts)
        return self._shapes[key]

    def _make_shape(
        self, scheduled: np.ndarray, drafts: np.ndarray, sampled: np.ndarray, decodes: np.ndarray
    ) -> BatchShape:
        num_reqs, k = len(scheduled), self.k
        end = np.cumsum(scheduled)
        num_tokens, start = int(end[-1]), end - scheduled
        row = np.repeat(np.arange(num_reqs), scheduled)
        index = np.arange(num_tokens) - start[row]
        decay, inverse = _powers(max(1024, 1 << int(scheduled.max()).bit_length()))

        first_x, zero = num_reqs * WINDOW, num_reqs * WINDOW + num_tokens
        lag = np.arange(WINDOW + 1)[:, None]
        taps = np.where(
            index >= lag,
            first_x + np.arange(num_tokens) - lag,
            row * WINDOW + WINDOW + index - lag,
        )
        skip = np.where(decodes, 0, scheduled - 1)[:, None]  # tokens whose state is not kept
        since = skip + 1 - WINDOW + np.arange(WINDOW + k)  # place in the row's tokens
        before = np.arange(num_reqs)[:, None] * WINDOW + WINDOW + since
        window = np.where(since < 0, before, first_x + start[:, None] + since)
        window[since >= scheduled[:, None]] = zero
        lane = np.arange(k + 1)
        is_kept = skip + lane < scheduled[:, None]
        width = lane if drafts.any() else lane[:1]
        is_picked = width < sampled[:, None]
        wide = {
            "row": row, "index": index, "decay": decay[index], "inverse": inverse[index],
            "taps": taps, "start": start, "window": window,
            "kept": np.where(is_kept, start[:, None] + skip + lane, 0),
            "kept_column": np.where(is_kept, lane, k + 1),
            "picked": np.where(is_picked, (end - 1 - drafts)[:, None] + width, 0),
            "is_picked": is_picked,
        }  # fmt: skip
        return BatchShape(**_upload(wide, {}, self.device), row_np=row, start_np=start)


def _upload(
    wide: Mapping[str, np.ndarray], narrow: Mapping[str, np.ndarray], device: torch.device
) -> dict[str, torch.Tensor]:
    """Arrays as int64 and int32 tensors of their shapes, which share one allocation."""
    aligned: list[np.ndarray] = []  # the narrow ones, which a target's kernels get
    for array in narrow.values():
        aligned += (array, _PADDING[: -array.size % len(_PADDING)])
    data = np.concatenate([a.ravel() for a in wide.values()], dtype=np.int64).view(np.int32)
    first = sum(a.size for a in aligned)  # of the wide ones
    joined = np.concatenate([*aligned, data], dtype=np.int32, casting="same_kind")
    packed = to_device(torch.from_numpy(joined), device)
    parts = packed[:first].split_with_sizes([a.size for a in aligned])[::2]
    parts += packed[first:].view(torch.int64).split_with_sizes([a.size for a in wide.values()])
    return {
        name: part if array.ndim == 1 else part.view(array.shape)
        for (name, array), part in zip({**narrow, **wide}.items(), parts, strict=True)
    }


@cache
def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """``[count]`` powers of DECAY from the first on, and of its inverse modulo 2**64."""
    inverse = np.uint64(pow(DECAY, -1, 1 << 64)).astype(np.int64)
    decay, undo = (np.cumprod(np.full(count, base)) for base in (np.int64(DECAY), inverse))
    return decay, undo


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on the device, without waiting for the copy."""
    if device.type == "cpu":
        return tensor
    pinned = tensor.pin_memory()
    copied = pinned.to(device, non_blocking=True)
    raise_if_broken(device)
    return copied
