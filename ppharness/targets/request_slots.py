"""Per-request device state that the model runner keeps beside the state module."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .interface import InputBatch, SampledOutputs, TargetConfig


class BuiltinRequestSlots:
    """Computed tokens and last sampled token per slot.

    One spare row at the end takes the writes of rows without a slot: it is what -1
    means as an index, so that nothing is read back from the device to find them.
    """

    def __init__(self, config: TargetConfig):
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
        rows = outputs.idx_mapping.to(torch.int64)
        grown = self._computed[rows] - outputs.num_rejected
        if query_start_loc is not None:
            grown += query_start_loc.diff()
        self._computed[rows] = grown
        tokens = torch.cat([self._last[rows, None], outputs.sampled_tokens], dim=1)
        newest = outputs.num_sampled.clamp(0, tokens.shape[1] - 1).to(torch.int64)
        self._last[rows] = tokens.gather(1, newest[:, None])[:, 0]

    def advance(self, batch: InputBatch) -> None:
        """The whole batch moves on by what was scheduled, as if nothing will be rejected."""
        rows = batch.idx_mapping.to(torch.int64)
        self._computed[rows] += batch.query_start_loc.diff()
