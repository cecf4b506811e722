"""The built-in relay: sampled tokens from the last rank to the others, used later."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from .interface import InputBatch, RelayChannel, SampledOutputs, TargetConfig
from .side_stream import Arrival, SideStream


def need_sampled_mask(batch: InputBatch) -> np.ndarray:
    """``[num_reqs]`` bool: rows whose sample a later step needs.

    Not a non-final prefill chunk, which samples nothing, nor a final one whose only
    token reaches the request's length cap.  Decode rows always count: the host's
    number of computed tokens may be ahead of the truth, so it cannot tell that a
    decode row is the last.  Every rank must come to the same verdict.
    """
    samples = batch.num_computed_tokens_np + batch.num_scheduled_tokens >= batch.prefill_len_np
    capped = batch.is_prefilling_np & (batch.prefill_len_np + 1 >= batch.max_seq_len_np)
    return samples & ~capped


@dataclass
class _Pending:
    """A step whose sample was posted for, not yet applied."""

    arrival: Arrival
    sampled_tokens: torch.Tensor  # [num_reqs, 1 or K + 1]
    counts: torch.Tensor  # [2, num_reqs] num_sampled, num_rejected
    idx_mapping: torch.Tensor  # [num_reqs]
    idx_mapping_np: np.ndarray  # [num_reqs]
    needed: np.ndarray  # [num_reqs] bool
    generation_np: np.ndarray  # [num_reqs] of each row's slot when the step ran


class BuiltinTokenRelay:
    """A FIFO of ``relay_depth`` places on each rank but the last.

    It advances once a step, empty steps included.  A slot's generation counts its
    frees, so that a late sample never reaches a slot's next owner.
    """

    def __init__(self, config: TargetConfig, channel: RelayChannel):
        self.config = config
        self.channel = channel
        self.device = config.device
        self.side = SideStream(config.device)
        self.generation_np = np.zeros(config.max_num_reqs, dtype=np.int32)
        self.queue: deque[_Pending | None] = deque([None] * config.relay_depth)
        self.sending: Arrival | None = None

    def on_req_idx_freed(self, req_idx: int) -> None:
        """What is on its way for this slot must not be applied any more."""
        self.generation_np[req_idx] += 1

    def receive(self, batch: InputBatch) -> bool:
        """Posts the receives of this step; True when every row's sample is needed."""
        needed = need_sampled_mask(batch)
        if not needed.any():
            return False
        width = self._width(batch)
        with self.side.after_main():
            tokens = torch.empty(batch.num_reqs, width, dtype=torch.int64, device=self.device)
            counts = torch.empty(2, batch.num_reqs, dtype=torch.int32, device=self.device)
            arrival = self.side.arrival(
                [
                    self.channel.broadcast(tokens, "sampled tokens"),
                    self.channel.broadcast(counts, "counts"),
                ]
            )
        if self.device.type == "cuda":  # made on the side stream, used on the main one
            main = torch.cuda.current_stream()
            tokens.record_stream(main)
            counts.record_stream(main)
        generation = self.generation_np[batch.idx_mapping_np]
        self.queue[-1] = _Pending(
            arrival, tokens, counts, batch.idx_mapping, batch.idx_mapping_np, needed, generation
        )
        return bool(needed.all())

    def broadcast(
        self,
        sampled_token_ids: torch.Tensor,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        batch: InputBatch,
    ) -> None:
        """Sends what this step sampled, if any rank needs it; `[num_reqs, width]` int64 tokens."""
        if self.sending is not None:
            self.sending.wait()
            self.sending = None
        if not need_sampled_mask(batch).any():
            return
        tokens = sampled_token_ids[:, : self._width(batch)].contiguous()
        with self.side.after_main():
            counts = torch.stack((num_sampled, num_rejected))
            self.sending = self.side.arrival(
                [
                    self.channel.broadcast(tokens, "sampled tokens"),
                    self.channel.broadcast(counts, "counts"),
                ]
            )
        self.side.keep(tokens, num_sampled, num_rejected)

    def get_prev_sampled_outputs(self) -> SampledOutputs | None:
        """The sample of ``relay_depth`` steps ago, rows that must not be applied at -1."""
        entry = self.queue.popleft()
        self.queue.append(None)
        if entry is None:
            return None
        entry.arrival.wait()
        stale = self.generation_np[entry.idx_mapping_np] != entry.generation_np
        excluded = stale | ~entry.needed
        idx_mapping = entry.idx_mapping
        if excluded.any():
            kept = np.where(excluded, -1, entry.idx_mapping_np)
            if (kept < 0).all():
                return None
            host = torch.from_numpy(kept).to(idx_mapping.dtype)
            if self.device.type == "cuda":  # pinned: the copy does not hold up the host
                host = host.pin_memory()
            idx_mapping = host.to(self.device, non_blocking=True)
        return SampledOutputs(entry.sampled_tokens, entry.counts[0], entry.counts[1], idx_mapping)

    def _width(self, batch: InputBatch) -> int:
        """Tokens a row; the same on both sides, since all ranks see the same drafts."""
        return self.config.num_speculative_tokens + 1 if batch.num_draft_tokens else 1
