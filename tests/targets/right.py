"""Right targets, each written in a way of its own."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
import triton
import triton.language as tl
from plain_align import PlainAlignState

from ppharness.targets import (
    BuiltinMambaState,
    BuiltinTarget,
    BuiltinTokenRelay,
    InputBatch,
    SampledOutputs,
    TargetConfig,
)
from ppharness.targets.interface import PendingBroadcast, RelayChannel
from ppharness.targets.token_relay import need_sampled_mask


class MaskState(BuiltinMambaState):
    """Torch operations and masks, nothing in a loop, nothing of the kernels' for the counts."""

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        valid = idx_mapping >= 0
        slots = idx_mapping[valid].to(torch.int64)
        if isinstance(num_sampled, int):
            self.num_accepted_tokens[slots] = max(num_sampled, 1)
        else:
            counts = num_sampled[valid].clamp(min=1)
            self.num_accepted_tokens.scatter_(0, slots, counts.to(torch.int32))
        self.save_blocks(idx_mapping, num_computed_tokens)

    def save_blocks(
        self, idx_mapping: torch.Tensor, num_computed_tokens: torch.Tensor | None
    ) -> None:
        """What the built-in does after the counts are stored: none of their rows change."""
        if self.align is not None and num_computed_tokens is not None:
            nobody = torch.full_like(idx_mapping, -1)
            super().postprocess_state(nobody, 0)  # the counts stay
            from ppharness.kernels.align import postprocess_align

            postprocess_align(
                idx_mapping, num_computed_tokens, self.num_accepted_tokens, self.align
            )


@triton.jit
def _store_one_row(
    idx_mapping_ptr,  # [num_reqs] batch row -> slot, negative = skip
    num_sampled_ptr,  # [num_reqs]
    num_accepted_ptr,  # [max_num_reqs]
    neutral,
    PER_ROW: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(idx_mapping_ptr + row).to(tl.int64)
    if slot >= 0:
        count = neutral
        if PER_ROW:
            count = tl.load(num_sampled_ptr + row)
        tl.store(num_accepted_ptr + slot, tl.maximum(count, 1))


class ProgramPerRowState(MaskState):
    """A Triton program for each row."""

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        num_reqs = idx_mapping.shape[0]
        per_row = not isinstance(num_sampled, int)
        if num_reqs:
            _store_one_row[(num_reqs,)](
                idx_mapping,
                num_sampled if per_row else self.num_accepted_tokens,
                self.num_accepted_tokens,
                0 if per_row else num_sampled,
                PER_ROW=per_row,
            )
        self.save_blocks(idx_mapping, num_computed_tokens)


class ResetsOnRemoveState(BuiltinMambaState):
    """A slot is clean when it is given back, so that nothing is left to do when it is taken."""

    def add_request(self, req_idx: int, num_computed_tokens: int) -> None:
        if self.align is not None:
            block = (num_computed_tokens - 1) // self.config.mamba_block_size
            self.align.state_idx[req_idx].fill_(block)

    def remove_request(self, req_idx: int) -> None:
        self.num_accepted_tokens[req_idx].fill_(1)


class LazyState(PlainAlignState):
    """Keeps what was reported and stores it when somebody reads the buffer."""

    def __init__(self, config: TargetConfig):
        self.pending: dict[int, int] = {}  # slot -> count
        super().__init__(config)

    @property
    def num_accepted_tokens(self) -> torch.Tensor:  # type: ignore[override]
        pending, self.pending = self.pending, {}
        for slot, count in pending.items():
            self._buffer[slot] = count
        return self._buffer

    @num_accepted_tokens.setter
    def num_accepted_tokens(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        if self.align is not None:
            super().postprocess_state(idx_mapping, num_sampled, num_computed_tokens)
            return
        slots = idx_mapping.tolist()
        scalar = isinstance(num_sampled, int)
        counts = [num_sampled] * len(slots) if scalar else num_sampled.tolist()
        for slot, count in zip(slots, counts, strict=True):
            if slot >= 0:
                self.pending[slot] = max(count, 1)

    def add_request(self, req_idx: int, num_computed_tokens: int) -> None:
        self.pending[req_idx] = 1
        if self.align is not None:
            block = (num_computed_tokens - 1) // self.config.mamba_block_size
            self.align.state_idx[req_idx] = block

    def remove_request(self, req_idx: int) -> None:
        self.pending.pop(req_idx, None)


class NewBufferState(PlainAlignState):
    """Every change of the counts makes a new tensor."""

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        self.num_accepted_tokens = self.num_accepted_tokens.clone()
        super().postprocess_state(idx_mapping, num_sampled, num_computed_tokens)

    def add_request(self, req_idx: int, num_computed_tokens: int) -> None:
        self.num_accepted_tokens = self.num_accepted_tokens.clone()
        super().add_request(req_idx, num_computed_tokens)


class OnePacketRelay(BuiltinTokenRelay):
    """One broadcast a step: ``[num_reqs, 2 + width]`` counts and tokens in one tensor.

    Keeps (request life, step) in a plain list instead of a FIFO and generations: what was
    freed since is looked up when a sample is due.
    """

    def __init__(self, config: TargetConfig, channel: RelayChannel):
        self.config, self.channel = config, channel
        self.now = -1  # steps begun, less one
        self.due: deque[tuple[int, PendingBroadcast, torch.Tensor, list[int]]] = deque()
        self.freed_at = [-1] * config.max_num_reqs  # step of the last free
        self.packet: torch.Tensor | None = None

    def on_req_idx_freed(self, req_idx: int) -> None:
        self.freed_at[req_idx] = self.now

    def receive(self, batch: InputBatch) -> bool:
        needed = need_sampled_mask(batch)
        if not needed.any():
            return False
        packet = torch.empty(batch.num_reqs, 2 + self._width(batch), dtype=torch.int64)
        pending = self.channel.broadcast(packet, "counts and tokens")
        slots = np.where(needed, batch.idx_mapping_np, -1).tolist()
        self.due.append((self.now, pending, packet, slots))
        self.mapping_dtype = batch.idx_mapping.dtype
        return bool(needed.all())

    def broadcast(
        self,
        sampled_token_ids: torch.Tensor,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        batch: InputBatch,
    ) -> None:
        if need_sampled_mask(batch).any():
            counts = torch.stack([num_sampled, num_rejected], dim=1).to(torch.int64)
            tokens = sampled_token_ids[:, : self._width(batch)]
            self.channel.broadcast(torch.cat([counts, tokens], dim=1), "counts and tokens")

    def get_prev_sampled_outputs(self) -> SampledOutputs | None:
        self.now += 1
        if not self.due or self.due[0][0] + self.config.relay_depth > self.now:
            return None
        step, pending, packet, slots = self.due.popleft()
        pending.wait()
        kept = [slot if slot >= 0 and self.freed_at[slot] <= step else -1 for slot in slots]
        if max(kept) < 0:
            return None
        counts = packet[:, :2].T.to(torch.int32).contiguous()
        mapping = torch.tensor(kept, dtype=self.mapping_dtype)
        return SampledOutputs(packet[:, 2:].contiguous(), counts[0], counts[1], mapping)


class Masks(BuiltinTarget):
    exact = True
    mamba_state_class = MaskState


class RowLoop(BuiltinTarget):
    exact = True
    mamba_state_class = PlainAlignState


class ProgramPerRow(BuiltinTarget):
    exact = True
    mamba_state_class = ProgramPerRowState


class ResetsOnRemove(BuiltinTarget):
    mamba_state_class = ResetsOnRemoveState


class Lazy(BuiltinTarget):
    mamba_state_class = LazyState


class NewBuffer(BuiltinTarget):
    exact = True
    mamba_state_class = NewBufferState


class OnePacket(BuiltinTarget):
    exact = True
    token_relay_class = OnePacketRelay

    def idx_mapping_dtype(self) -> torch.dtype:
        return torch.int64
