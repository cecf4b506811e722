"""Relays that break exactly one rule each, and keep all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import replace

import numpy as np
import torch

from ppharness.targets import BuiltinTarget, BuiltinTokenRelay, TargetConfig
from ppharness.targets import token_relay as builtin_relay
from ppharness.targets.interface import InputBatch, RelayChannel, SampledOutputs


class NoGenerationRelay(BuiltinTokenRelay):
    """A freed slot keeps its generation, so a late sample reaches the next owner."""

    def on_req_idx_freed(self, req_idx: int) -> None:
        return


class TooDeepRelay(BuiltinTokenRelay):
    """The FIFO has one place too many."""

    def __init__(self, config: TargetConfig, channel: RelayChannel):
        super().__init__(config, channel)
        self.queue = deque([None] * (config.relay_depth + 1))


class TooShortRelay(BuiltinTokenRelay):
    """The FIFO has one place too few."""

    def __init__(self, config: TargetConfig, channel: RelayChannel):
        super().__init__(config, channel)
        self.queue = deque([None] * (config.relay_depth - 1))


class StandsStillRelay(BuiltinTokenRelay):
    """The FIFO does not advance after a step without rows."""

    def __init__(self, config: TargetConfig, channel: RelayChannel):
        super().__init__(config, channel)
        self.had_rows = True

    def receive(self, batch: InputBatch) -> bool:
        self.had_rows = True
        return super().receive(batch)

    def get_prev_sampled_outputs(self) -> SampledOutputs | None:
        if not self.had_rows:
            return None
        self.had_rows = False
        return super().get_prev_sampled_outputs()


class _Spoiled(BuiltinTokenRelay, ABC):
    """Hands out something else than what arrived."""

    def get_prev_sampled_outputs(self) -> SampledOutputs | None:
        outputs = super().get_prev_sampled_outputs()
        return None if outputs is None else self.spoil(outputs)

    @abstractmethod
    def spoil(self, outputs: SampledOutputs) -> SampledOutputs: ...


class CorruptsTokenRelay(_Spoiled):
    """On one stage, the first token of the first row has a flipped bit."""

    def spoil(self, outputs: SampledOutputs) -> SampledOutputs:
        if self.config.pp_rank == 1:
            outputs.sampled_tokens[0, 0] ^= 1
        return outputs


class SwapsCountsRelay(_Spoiled):
    """`num_sampled` and `num_rejected` change places."""

    def spoil(self, outputs: SampledOutputs) -> SampledOutputs:
        return replace(outputs, num_sampled=outputs.num_rejected, num_rejected=outputs.num_sampled)


class ForgetsRejectedRelay(_Spoiled):
    """Nothing was ever rejected."""

    def spoil(self, outputs: SampledOutputs) -> SampledOutputs:
        return replace(outputs, num_rejected=torch.zeros_like(outputs.num_rejected))


class FlipsSlotsRelay(_Spoiled):
    """The mapping runs backwards."""

    def spoil(self, outputs: SampledOutputs) -> SampledOutputs:
        return replace(outputs, idx_mapping=outputs.idx_mapping.flip(0))


class CompactsMappingRelay(_Spoiled):
    """Rows that must not be applied are dropped from the mapping, not from the counts."""

    def spoil(self, outputs: SampledOutputs) -> SampledOutputs:
        kept = outputs.idx_mapping[outputs.idx_mapping >= 0]
        mapping = torch.full_like(outputs.idx_mapping, -1)
        mapping[: len(kept)] = kept
        return replace(outputs, idx_mapping=mapping)


class DropsFirstRowRelay(_Spoiled):
    """The first row's sample is thrown away."""

    def spoil(self, outputs: SampledOutputs) -> SampledOutputs:
        mapping = outputs.idx_mapping.clone()
        mapping[0] = -1
        return replace(outputs, idx_mapping=mapping)


class LastTwiceRelay(_Spoiled):
    """The last token of a row is what its first one was."""

    def spoil(self, outputs: SampledOutputs) -> SampledOutputs:
        tokens = outputs.sampled_tokens
        return replace(outputs, sampled_tokens=tokens[:, :1].expand_as(tokens).contiguous())


class AlwaysTrueRelay(BuiltinTokenRelay):
    """Says that every row decodes next."""

    def receive(self, batch: InputBatch) -> bool:
        super().receive(batch)
        return True


class AlwaysFalseRelay(BuiltinTokenRelay):
    """Says that some row does not decode next."""

    def receive(self, batch: InputBatch) -> bool:
        super().receive(batch)
        return False


class LooksFinishedRelay(BuiltinTokenRelay):
    """Leaves out rows that look finished by the host's optimistic count (vllm#54436)."""

    def receive(self, batch: InputBatch) -> bool:
        with _Mask(looks_finished):
            return super().receive(batch)

    def broadcast(
        self,
        sampled_token_ids: torch.Tensor,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        batch: InputBatch,
    ) -> None:
        with _Mask(looks_finished):
            super().broadcast(sampled_token_ids, num_sampled, num_rejected, batch)


_need_sampled_mask = builtin_relay.need_sampled_mask


def looks_finished(batch: InputBatch) -> np.ndarray:
    """``[num_reqs]`` bool: the rule up to vLLM 0.29."""
    computed = np.maximum(batch.num_computed_tokens_np, batch.prefill_len_np)
    return _need_sampled_mask(batch) & (computed + 1 < batch.max_seq_len_np)


class _Mask:
    """Within it, the built-in relay asks another mask."""

    def __init__(self, mask: object):
        self.mask = mask

    def __enter__(self) -> None:
        builtin_relay.need_sampled_mask = self.mask

    def __exit__(self, *error: object) -> None:
        builtin_relay.need_sampled_mask = _need_sampled_mask


class NoGeneration(BuiltinTarget):
    token_relay_class = NoGenerationRelay


class ExactNoGeneration(NoGeneration):
    exact = True


class TooDeep(BuiltinTarget):
    token_relay_class = TooDeepRelay


class TooShort(BuiltinTarget):
    token_relay_class = TooShortRelay


class StandsStill(BuiltinTarget):
    token_relay_class = StandsStillRelay


class CorruptsToken(BuiltinTarget):
    token_relay_class = CorruptsTokenRelay


class SwapsCounts(BuiltinTarget):
    token_relay_class = SwapsCountsRelay


class ForgetsRejected(BuiltinTarget):
    token_relay_class = ForgetsRejectedRelay


class FlipsSlots(BuiltinTarget):
    token_relay_class = FlipsSlotsRelay


class CompactsMapping(BuiltinTarget):
    token_relay_class = CompactsMappingRelay


class DropsFirstRow(BuiltinTarget):
    token_relay_class = DropsFirstRowRelay


class LastTwice(BuiltinTarget):
    token_relay_class = LastTwiceRelay


class AlwaysTrue(BuiltinTarget):
    token_relay_class = AlwaysTrueRelay


class ExactAlwaysTrue(AlwaysTrue):
    exact = True


class AlwaysFalse(BuiltinTarget):
    token_relay_class = AlwaysFalseRelay


class ExactAlwaysFalse(AlwaysFalse):
    exact = True


class LooksFinished(BuiltinTarget):
    token_relay_class = LooksFinishedRelay
