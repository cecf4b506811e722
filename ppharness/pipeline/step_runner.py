"""One step on one rank: the calls into the target, in the order of vLLM's Model Runner V2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ..oracle.buffers import Expectation
from ..scenario.schedule import Step
from ..targets.interface import (
    InputBatch,
    MambaState,
    RequestSlots,
    SampledOutputs,
    TargetConfig,
    TokenRelay,
)
from ..world.world import World
from .buffer_guard import BufferGuard
from .faults import Faults
from .forward import Forward
from .judge import BufferJudge
from .step_tensors import StepTensors, to_device
from .target_calls import TargetCalls


@dataclass
class StepRunner:
    """Runs the steps of one scenario through what the target made for it."""

    config: TargetConfig
    world: World
    schedule: Sequence[Step]
    forward: Forward
    calls: TargetCalls
    buffers: BufferJudge
    faults: Faults
    state: MambaState
    relay: TokenRelay
    slots: RequestSlots
    guard: BufferGuard

    def run(self, step: Step, expected: Iterator[Expectation]) -> None:
        """One step; `expected` has the buffer after each of its phases."""
        self._apply_sampled(step)
        self._snapshot(expected)
        self._free(step)
        self._snapshot(expected, touched=bool(step.freed))
        self._add(step)
        self._snapshot(expected, touched=bool(step.added))
        if not step.rows:
            self.forward.note(step)
            return
        batch, tensors = self.forward.build(step, self.slots)
        self.calls.state(
            "preprocess_state", step.index, self.state.preprocess_state,
            batch, self.slots.num_computed_tokens,
        )  # fmt: skip
        self._snapshot(expected)
        self.calls.state("forward", step.index, lambda: None)  # faults that hit here
        if self.config.num_speculative_tokens and hasattr(self.slots, "draft_tokens"):
            self.forward.check_drafts(step, self.slots.draft_tokens, tensors)
        x = self.forward.run(step, batch, tensors, self.slots, self.guard.buffer)
        if self.forward.mismatch:  # the ledger tells; nothing more is posted
            self.calls.failed = self.calls.relay_failed = True
        if self.config.is_last_rank:
            self._sample(step, batch, tensors, x)
        else:
            self._receive(step, batch)
        kept = [r.slot for r in step.rows if not r.filtered]
        if kept and self.faults.take("corrupt-slot", step.index):
            self.guard.buffer[max(kept)].fill_(self.config.num_speculative_tokens + 3)
        self._snapshot(expected)
        self.world.look_at_device()  # before `tensors`, which the side stream used, is freed

    def _apply_sampled(self, step: Step) -> None:
        """What the last rank sampled `depth` steps ago reaches this one."""
        if self.config.is_last_rank:
            return
        outputs = self.calls.relay("apply_sampled", step.index, self._prev_sampled_outputs)
        if outputs is None:
            return
        depth = self.config.relay_depth
        source = self.schedule[step.index - depth] if step.index >= depth else step
        if _has_counts(source) and self.faults.take("corrupt-counts", source.index):
            outputs.num_sampled = (outputs.num_sampled - 1).clamp(min=0)
        self._record_heard(outputs, source, step)
        self.calls.state("apply_sampled", step.index, self.slots.apply_sampled, outputs, None)
        self.calls.state(
            "apply_sampled", step.index, self.state.postprocess_state,
            outputs.idx_mapping, outputs.num_sampled, self.slots.num_computed_tokens,
        )  # fmt: skip
        self.world.look_at_device()  # before `outputs`, which other streams used, is freed

    def _prev_sampled_outputs(self) -> SampledOutputs | None:
        outputs = self.relay.get_prev_sampled_outputs()
        if outputs is not None:
            _look_at(outputs)
        return outputs

    def _free(self, step: Step) -> None:
        for freed in step.freed:
            self.guard.before_remove(freed.slot)
            self.calls.state("free", step.index, self.state.remove_request, freed.slot)
            self.calls.state(
                "free", step.index, self.slots.remove_request, freed.slot, freed.req_id
            )
            self.guard.after_remove(freed.slot)
            self.calls.relay("free", step.index, self.relay.on_req_idx_freed, freed.slot)

    def _add(self, step: Step) -> None:
        for added in step.added:
            token_ids = self.forward.reference.token_ids(added.req_num, 0, added.prefill_len)
            self.guard.before_add(added.slot)
            self.calls.state(
                "add_request", step.index, self.slots.add_request,
                added.slot, added.req_id, added.prompt_len, token_ids,
                added.num_computed_tokens, added.max_tokens,
            )  # fmt: skip
            self.calls.state(
                "add_request", step.index, self.state.add_request,
                added.slot, added.num_computed_tokens,
            )  # fmt: skip

    def _sample(self, step: Step, batch: InputBatch, tensors: StepTensors, x: torch.Tensor) -> None:
        """The last rank: sample, broadcast, then take its own result in at once."""
        sampled = self.forward.sample(step, x, tensors)
        num_sampled, num_rejected = tensors.num_sampled, tensors.num_rejected
        told = num_sampled
        if _has_counts(step) and self.faults.take("corrupt-counts", step.index):
            told = (num_sampled - 1).clamp(min=0)
        self.calls.checks.record(told, partial(self.forward.tokens.counts, step=step))
        if self.world.pp_size > 1:
            self.calls.relay(
                "relay", step.index, self.relay.broadcast, sampled, told, num_rejected, batch
            )
        outputs = SampledOutputs(sampled, num_sampled, num_rejected, batch.idx_mapping)
        self.calls.state(
            "postprocess_state", step.index, self.slots.apply_sampled,
            outputs, batch.query_start_loc,
        )  # fmt: skip
        self.calls.state(
            "postprocess_state", step.index, self.state.postprocess_state,
            batch.idx_mapping, num_sampled, self.slots.num_computed_tokens,
        )  # fmt: skip
        if self.config.num_speculative_tokens and hasattr(self.slots, "draft_tokens"):
            drafts = to_device(self.forward.next_drafts(step), self.world.device)
            self.slots.draft_tokens[tensors.slot] = drafts  # this rank's own drafter
            if hasattr(self.relay, "broadcast_drafts"):
                self.calls.relay("relay", step.index, self.relay.broadcast_drafts, drafts, batch)

    def _receive(self, step: Step, batch: InputBatch) -> None:
        """Every other rank: post the receives, move on, neutral counts for prefill chunks."""
        all_decode_next = self.calls.relay("relay", step.index, self.relay.receive, batch)
        self.calls.state("postprocess_state", step.index, self.slots.advance, batch)
        if not all_decode_next:
            self.calls.state(
                "postprocess_state", step.index, self.state.postprocess_state,
                batch.idx_mapping, 0,
            )  # fmt: skip

    def _record_heard(self, outputs: SampledOutputs, source: Step, now: Step) -> None:
        num_reqs = outputs.sampled_tokens.shape[0]
        if num_reqs != len(source.rows):
            self.calls.checks.add(
                "divergence", now.index, "apply_sampled",
                f"{num_reqs} rows were applied as step {source.index}'s sample, "
                f"which had {len(source.rows)}",
                expected=len(source.rows), actual=num_reqs,
            )  # fmt: skip
            return
        columns = [outputs.idx_mapping, outputs.num_sampled, outputs.num_rejected]
        heard = torch.cat([*(c[:, None] for c in columns), outputs.sampled_tokens], dim=1)
        judge = partial(self.forward.tokens.heard, source=source, now=now)
        self.calls.checks.record(heard, judge, copy=False)

    def _snapshot(self, expected: Iterator[Expectation], *, touched: bool = True) -> None:
        """Records the buffer after a phase; nothing is new where no call was made in it."""
        wanted = next(expected, None)
        if wanted is not None and touched and not self.calls.failed:
            self.calls.checks.record(
                self.guard.snapshot(), partial(self.buffers.judge, expected=wanted)
            )


def _has_counts(step: Step) -> bool:
    """Whether a count that is one too low would be news to anybody."""
    return any(r.num_sampled and not r.filtered for r in step.rows)


def _look_at(outputs: SampledOutputs) -> None:
    """A relay's answer, within the call that gave it.

    Raises:
        TypeError: a field is no tensor of integers of its shape.
    """
    num_reqs = len(getattr(outputs, "idx_mapping", ()))
    for name in ("idx_mapping", "sampled_tokens", "num_sampled", "num_rejected"):
        field, ndim = getattr(outputs, name, None), 2 if name == "sampled_tokens" else 1
        dtype = str(getattr(field, "dtype", type(field).__name__)).removeprefix("torch.")
        shape = list(getattr(field, "shape", ()))
        if "int" not in dtype or len(shape) != ndim or shape[0] != num_reqs:
            allowed = f"integers [{num_reqs}{', width' if ndim == 2 else ''}]"
            raise TypeError(f"sampled outputs: {name} is {dtype} {shape}, allowed: {allowed}")
