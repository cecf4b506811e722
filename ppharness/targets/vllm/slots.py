"""The release's request state and the kernels that keep it, behind the interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..interface import InputBatch, SampledOutputs, TargetConfig
from .parts import Parts

_VOCAB_SIZE = 1 << 15  # stored by RequestState, not used for any buffer


class VllmRequestSlots:
    """A `RequestState` with the glue of the model runner around it."""

    def __init__(self, parts: Parts, config: TargetConfig):
        self._parts = parts
        self._states: Any = parts.request_state_class(
            max_num_reqs=config.max_num_reqs,
            max_model_len=config.max_model_len,
            max_num_batched_tokens=config.max_num_batched_tokens,
            num_speculative_steps=config.num_speculative_tokens,
            vocab_size=_VOCAB_SIZE,
            device=config.device,
        )
        states = self._states
        self.num_computed_tokens: torch.Tensor = states.num_computed_tokens.gpu  # [max_num_reqs]
        self.last_sampled_tokens: torch.Tensor = states.last_sampled_tokens[:, 0]  # [max_num_reqs]
        # What this rank holds as each slot's next drafts.
        self.draft_tokens: torch.Tensor = states.draft_tokens  # [max_num_reqs, K] int64

    def add_request(
        self,
        req_idx: int,
        req_id: str,
        prompt_len: int,
        token_ids: Sequence[int],
        num_computed_tokens: int,
        max_tokens: int,
    ) -> None:
        """A request takes the slot that the harness names, which the release hands out next."""
        free = self._states.free_indices
        free.remove(req_idx)
        free.append(req_idx)
        self._states.add_request(
            req_id=req_id,
            prompt_len=prompt_len,
            all_token_ids=list(token_ids),
            num_computed_tokens=num_computed_tokens,
            max_tokens=max_tokens,
        )
        self._states.apply_staged_writes()

    def remove_request(self, req_idx: int, req_id: str) -> None:
        freed = self._states.remove_request(req_id)
        if freed != req_idx:
            raise RuntimeError(f"{req_id} was in slot {req_idx}, but the release freed {freed}")

    def apply_sampled(self, outputs: SampledOutputs, query_start_loc: torch.Tensor | None) -> None:
        """The first half of the model runner's `postprocess_sampled`."""
        states = self._states
        drafts: dict[str, torch.Tensor] = {}
        if outputs.draft_tokens is not None:
            if self._parts.differences.post_update_writes_drafts:
                drafts = {
                    "draft_tokens": outputs.draft_tokens,
                    "draft_tokens_out": states.draft_tokens,
                }
            else:  # 0.30.0 to 0.32.0 write them while they take the outputs off the queue
                kept = outputs.idx_mapping >= 0
                states.draft_tokens[outputs.idx_mapping[kept].long()] = outputs.draft_tokens[kept]
        self._parts.post_update(
            idx_mapping=outputs.idx_mapping,
            num_computed_tokens=states.num_computed_tokens.gpu,
            last_sampled_tokens=states.last_sampled_tokens,
            output_bin_counts=None,  # the last rank's penalties, which nothing here reads
            sampled_tokens=outputs.sampled_tokens,
            num_sampled=outputs.num_sampled,
            num_rejected=outputs.num_rejected,
            query_start_loc=query_start_loc,
            all_token_ids=states.all_token_ids.gpu,
            total_len=states.total_len.gpu,
            **drafts,
        )

    def advance(self, batch: InputBatch) -> None:
        """`postprocess_num_computed_tokens`, without the rows that hold no slot.

        A model runner never has such rows, and the release's kernel would write before
        the buffer for them.
        """
        idx_mapping, query_start_loc = batch.idx_mapping, batch.query_start_loc
        if (batch.idx_mapping_np < 0).any():
            kept = batch.idx_mapping_np >= 0
            if not kept.any():
                return
            rows = torch.from_numpy(kept).to(idx_mapping.device)
            lengths = query_start_loc.diff()[rows]
            idx_mapping = idx_mapping[rows]
            query_start_loc = torch.zeros_like(query_start_loc[: len(lengths) + 1])
            query_start_loc[1:] = lengths.cumsum(0)
        self._parts.post_update_num_computed_tokens(
            idx_mapping=idx_mapping,
            num_computed_tokens=self._states.num_computed_tokens.gpu,
            query_start_loc=query_start_loc,
        )
