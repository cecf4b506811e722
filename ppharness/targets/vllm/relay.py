"""The release's PPHandler behind the harness's interface."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import numpy as np
import torch

from ..interface import InputBatch, PendingBroadcast, RelayChannel, SampledOutputs, TargetConfig
from .parts import Parts
from .wire import DRAFTS, WireEnd


def make_relay(parts: Parts, config: TargetConfig, channel: RelayChannel) -> VllmTokenRelay:
    """With `broadcast_drafts` where the release has it."""
    relay_class = VllmDraftRelay if parts.differences.relay_sends_drafts else VllmTokenRelay
    return relay_class(parts, config, channel)


class VllmTokenRelay:
    """A `PPHandler` of one rank.

    Beside its queue runs one of ours, of the same length: the receives that each step
    posted, on a CPU not waited for.  Both advance together, once a step, and what
    leaves ours is waited for before the release hands out the outputs; so a wait sits
    where CUDA would make the main stream wait, and they come in the order of posting.
    """

    def __init__(self, parts: Parts, config: TargetConfig, channel: RelayChannel):
        self._parts = parts
        self._config = config
        self._end = WireEnd(config, channel)
        with parts.wire.over(self._end):
            self._handler: Any = parts.handler_class(
                max_num_reqs=config.max_num_reqs,
                num_speculative_steps=config.num_speculative_tokens,
                device=config.device,
            )
        self._arrivals: deque[list[PendingBroadcast]] = deque([] for _ in self._handler.queue)
        self._sends: list[PendingBroadcast] = []
        # Filled by releases that write drafts by slot; a spare row for rows without a slot.
        self._drafts = torch.zeros(
            config.max_num_reqs + 1,
            config.num_speculative_tokens,
            dtype=torch.int64,
            device=config.device,
        )

    def on_req_idx_freed(self, req_idx: int) -> None:
        self._handler.on_req_idx_freed(req_idx)

    def receive(self, batch: InputBatch) -> bool:
        """Posts the receives of this step, drafts included where the release relays them."""
        told = {}
        if self._parts.differences.receive_is_told_of_drafts:
            told["recv_drafts"] = self._config.num_speculative_tokens > 0
        with self._parts.wire.over(self._end):
            all_decode_next = self._handler.receive(self._as_release_has_it(batch), **told)
        if self._end.posted:
            self._arrivals[-1].extend(self._end.take_posted())
        return bool(all_decode_next)

    def broadcast(
        self,
        sampled_token_ids: torch.Tensor,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        batch: InputBatch,
    ) -> None:
        self._settle_sends()
        with self._parts.wire.over(self._end):
            self._handler.broadcast(
                sampled_token_ids, num_sampled, num_rejected, self._as_release_has_it(batch)
            )
        self._sends.extend(self._end.take_posted())

    def get_prev_sampled_outputs(self) -> SampledOutputs | None:
        """Also on the last rank, where nothing is queued and None comes back."""
        self._settle_sends()
        if self._arrivals:
            for pending in self._arrivals.popleft():
                pending.wait()
            self._arrivals.append([])
        by_slot = self._parts.differences.prev_outputs_write_drafts
        told = {"draft_tokens_to_update": self._drafts} if by_slot else {}
        with self._parts.wire.over(self._end):
            found = self._handler.get_prev_sampled_outputs(**told)
        if found is None:
            return None
        outputs = SampledOutputs(
            found["sampled_tokens"],
            found["num_sampled"],
            found["num_rejected"],
            found["idx_mapping"],
            found.get("draft_tokens"),
        )
        if by_slot and self._config.num_speculative_tokens > 0:
            outputs.draft_tokens = self._drafts[outputs.idx_mapping.long()]  # -1: the spare row
        return outputs

    def _as_release_has_it(self, batch: InputBatch) -> InputBatch:
        """The batch with the types that the release's own model runner gives it."""
        differences = self._parts.differences
        np_dtype = differences.mapping_np_dtype
        if batch.idx_mapping.dtype == torch.int64:  # a scenario may pin it for any release
            np_dtype = np.dtype(np.intp)
        changed: dict[str, Any] = {
            "idx_mapping_np": batch.idx_mapping_np.astype(np_dtype, copy=False)
        }
        if differences.mask_takes_is_prefilling and not batch.has_prefill:
            changed["max_seq_len_np"] = None
        return dataclasses.replace(batch, **changed)

    def _settle_sends(self) -> None:
        """What the last step sent has left: on a CPU its tensors may be used again."""
        sends, self._sends = self._sends, []
        for pending in sends:
            pending.wait()


class VllmDraftRelay(VllmTokenRelay):
    """Of a release whose last rank also sends the next step's drafts (from 0.30.0)."""

    def broadcast_drafts(self, draft_tokens: torch.Tensor, batch: InputBatch) -> None:
        """On the last rank, after `postprocess_state`; `[num_reqs, K]` int64."""
        if self._config.num_speculative_tokens == 0:
            return
        with self._parts.wire.over(self._end, first_label=DRAFTS):
            if self._parts.differences.drafts_sent_by_slot:
                self._drafts[batch.idx_mapping.long()] = draft_tokens
                self._handler.broadcast_drafts(self._drafts, self._as_release_has_it(batch))
            else:
                self._handler.broadcast_drafts(draft_tokens.contiguous())
        self._sends.extend(self._end.take_posted())
