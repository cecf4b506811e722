"""Per-request device state that the model runner keeps beside the state module."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .interface import InputBatch, SampledOutputs, TargetConfig


class BuiltinRequestSlots:
    """Computed tokens and last sampled token per slot.

    One spare row at the end takes the writes of rows without a slot, so that
    nothing is read back from the device to find them.
    """

    def __init__(self, config: TargetConfig):
        self._spare = config.max_num_reqs
        rows = config.max_num_reqs + 1
        self._computed = torch.zeros(rows, dtype=torch.int32, device=config.device)
        self._last = torch.zeros(rows, dtype=torch.int64, device=config.device)
        self.num_computed_tokens = self._computed[:-1]  # [max_num_reqs] int32
        self.last_sampled_tokens = self._last[:-1]  # [max_num_reqs] int64

    def add_request(
        self,
        req_idx: int,
        req_id: str,
        prompt_len: int,
        token_ids: Sequence[int],
        num_computed_tokens: int,
        max_tokens: int,
    ) -> None:
        """A request takes a slot."""
        self._computed[req_idx].fill_(num_computed_tokens)

    def remove_request(self, req_idx: int, req_id: str) -> None:
        """A request leaves its slot."""

    def apply_sampled(self, outputs: SampledOutputs, query_start_loc: torch.Tensor | None) -> None:
        """Last tokens and computed counts of sampled rows.

        On the last rank `query_start_loc` (``[num_reqs + 1]``) is given and the
        computed count grows by what was scheduled less what was rejected; on the others
        it grew when the step ran, so only the rejected tokens come off.
        """
        rows = self._rows(outputs.idx_mapping)
        delta = -outputs.num_rejected
        if query_start_loc is not None:
            delta = delta + query_start_loc.diff()
        self._computed.index_add_(0, rows, delta.to(torch.int32))
        sampled = outputs.num_sampled.to(torch.int64)
        column = (sampled - 1).clamp_(min=0)[:, None]
        token = outputs.sampled_tokens.gather(1, column)[:, 0]
        self._last[rows] = torch.where(sampled > 0, token, self._last[rows])

    def advance(self, batch: InputBatch) -> None:
        """The whole batch moves on by what was scheduled, as if nothing will be rejected."""
        rows = self._rows(batch.idx_mapping)
        self._computed.index_add_(0, rows, batch.query_start_loc.diff())

    def _rows(self, idx_mapping: torch.Tensor) -> torch.Tensor:
        rows = idx_mapping.to(torch.int64)
        return torch.where(rows < 0, self._spare, rows)
