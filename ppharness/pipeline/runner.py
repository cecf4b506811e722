"""One rank's life in one scenario, step by step.

The order within a step is that of vLLM's Model Runner V2 under pipeline parallelism.
A rank whose target raised keeps up its part of the communication until all ranks
agree, at the end of that step, to end the scenario.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch

from ..findings import Finding
from ..oracle.buffers import BufferOracle, Expectation, needs_sample
from ..scenario.model import Scenario
from ..scenario.schedule import Step, build_schedule, relay_depth
from ..targets.interface import InputBatch, SampledOutputs, Target, TargetConfig, TargetSkip
from ..world.device_fault import is_device_fault
from ..world.ledger import Ledger, find_disagreement
from ..world.world import World
from .buffer_guard import BufferGuard
from .checks import CheckList
from .faults import SLOW_WAIT, Faults
from .forward import Forward, batch_text
from .judge import BufferJudge
from .model import make_recurrent_states
from .step_tensors import StepTensors, to_device
from .target_calls import TargetCalls

DTYPES = {"int32": torch.int32, "int64": torch.int64}


class RankRunner:
    """Drives one target through one scenario on one rank."""

    def __init__(
        self,
        scenario: Scenario,
        target: Target,
        world: World,
        findings: list[Finding],
        faults: Faults,
        *,
        seed: int,
        judge_each_step: bool,
    ):
        self.world, self.faults = world, faults
        self.judge_each_step = judge_each_step
        self.depth = relay_depth(scenario, world.pp_size)
        self.is_last = world.pp_rank == world.pp_size - 1
        self.true_schedule = build_schedule(scenario, world.pp_size)
        self.checks = CheckList(world.rank, world.label, findings)
        self.calls = TargetCalls(world, self.checks, faults)
        self.calls.synchronous = judge_each_step and world.device.type == "cuda"
        self.steps_run = 0
        self.skip_reason: str | None = None
        pinned = scenario.idx_mapping_dtype
        mapping_dtype = DTYPES[pinned] if pinned else target.idx_mapping_dtype()
        states = make_recurrent_states(scenario, world.device)
        self.config = TargetConfig.for_scenario(scenario, world, mapping_dtype, self.depth, states)
        self.forward = Forward(
            scenario,
            self.true_schedule,
            world,
            self.checks,
            faults,
            states,
            seed=seed,
            mapping_dtype=mapping_dtype,
        )
        self.oracle = BufferOracle(
            scenario, self.true_schedule, pp_size=world.pp_size, pp_rank=world.pp_rank
        )
        self.buffers = BufferJudge(
            self.checks, max_accepted=scenario.num_speculative_tokens + 1, exact=target.exact
        )
        late = faults.late_abort(scenario)
        self.schedule = build_schedule(late, world.pp_size) if late else self.true_schedule
        self.world.at(None, "make the target")
        try:
            self.state = target.make_mamba_state(self.config)
            self.relay = target.make_token_relay(self.config, world.relay_channel)
            self.slots = target.make_request_slots(self.config)
            self.guard = BufferGuard(self.state, max_num_reqs=scenario.max_num_reqs)
        except TargetSkip as skip:
            self.skip_reason = str(skip)
        except Exception as error:
            self.calls.fail(None, None, error)

    def run(self) -> None:
        """All steps; ends early when any rank's target raised, or on an interrupt."""
        self.world.start_scenario()
        if self.world.agree(self.calls.failed or self.skip_reason is not None).stop:
            return
        for step in self.schedule:
            self.world.start_step(step.index)
            if self.faults.take("slow", step.index):
                self.world.delay = SLOW_WAIT
            self.world.relay_channel.skips = partial(
                self.faults.during, "skip-broadcast", step.index
            )
            try:
                self._run_step(step, iter(self.oracle.step(self._truth_of(step))))
            except RuntimeError as error:
                if not is_device_fault(error):
                    raise
                self.calls.fail("forward", step.index, error)
            self.calls.end_of_step(step.index)
            self.steps_run += 1
            judge = partial(self.calls.judge, step.index) if self.judge_each_step else None
            on_cpu = self.world.device.type == "cpu"
            agreed = self.world.agree(self.calls.failed, meanwhile=judge if on_cpu else None)
            if agreed.device_lost:  # what is on its way will never come
                self.checks.discard()
                break
            if judge is not None and not on_cpu:  # what a broken GPU sent proves nothing
                judge()
            if agreed.stop or not agreed.same:
                self._settle(step)
                break
        else:
            self.world.relay_channel.finish()
        self.world.delay = 0.0
        self._drain_device()
        if not self.world.device_lost:
            self.calls.judge(self.schedule[self.steps_run - 1].index)

    def _drain_device(self) -> None:
        """On CUDA, before anything is read back: a broken device must not make others wait."""
        world, rounds = self.world, 0
        if world.device.type != "cuda" or world.device_lost:
            return
        started = time.monotonic()
        while time.monotonic() < started + world.timeout:
            seconds = min(0.05 * 2**rounds, 2.0)
            seen = world.gather((self.calls.device_done(seconds), world.device_lost))
            if any(lost for _, lost in seen):
                world.device_lost = True
                self.checks.discard()
                return
            if all(done for done, _ in seen):
                return
            rounds += 1

    @property
    def complete(self) -> bool:
        """Whether every step has run."""
        return self.steps_run == len(self.schedule)

    @property
    def final_buffer(self) -> list[int] | None:
        """``[max_num_reqs]`` each slot as its last owner left it."""
        return self.guard.final() if self.steps_run and not self.world.device_lost else None

    def _run_step(self, step: Step, expected: Iterator[Expectation]) -> None:
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
        if self.is_last:
            self._sample(step, batch, tensors, x)
        else:
            self._receive(step, batch)
        kept = [r.slot for r in step.rows if not r.filtered]
        if kept and self.faults.take("corrupt-slot", step.index):
            self.guard.buffer[max(kept)].fill_(self.config.num_speculative_tokens + 3)
        self._snapshot(expected)
        self.world.look_at_device()  # before `tensors`, which the side stream used, is freed

    def _truth_of(self, step: Step) -> Step:
        """The step as the scenario has it; this rank's differs where it heard of an abort late."""
        return self.true_schedule[min(step.index, len(self.true_schedule) - 1)]

    def _apply_sampled(self, step: Step) -> None:
        """What the last rank sampled `depth` steps ago reaches this one."""
        if self.is_last:
            return
        outputs = self.calls.relay("apply_sampled", step.index, self.relay.get_prev_sampled_outputs)
        if outputs is None:
            return
        source = self.schedule[step.index - self.depth] if step.index >= self.depth else step
        if _has_counts(source) and self.faults.take("corrupt-counts", source.index):
            outputs.num_sampled = (outputs.num_sampled - 1).clamp(min=0)
        self._record_heard(outputs, source, step)
        self.calls.state("apply_sampled", step.index, self.slots.apply_sampled, outputs, None)
        self.calls.state(
            "apply_sampled", step.index, self.state.postprocess_state,
            outputs.idx_mapping, outputs.num_sampled, self.slots.num_computed_tokens,
        )  # fmt: skip
        self.world.look_at_device()  # before `outputs`, which other streams used, is freed

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
        self.checks.record(told, partial(self.forward.tokens.counts, step=step))
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

    def _settle(self, step: Step) -> None:
        """After a step that did not go well: no rank is left waiting for another."""
        needed = any(needs_sample(r) for r in step.rows)
        likely = bool(self.world.ledger.posts) == needed
        likely &= self.world.ledger.batch == batch_text(self._truth_of(step))
        every: list[tuple[Ledger, bool]] = self.world.gather((self.world.ledger, likely))
        pipeline = [every[rank] for rank in self.world.pipeline]
        ledgers = [ledger for ledger, _ in pipeline]
        # A relay that raised has left its posts out: that is no news.
        wrong = None
        if self.world.ledger.compared and not any(e[0].broken for e in every):
            wrong = find_disagreement(ledgers, [likely for _, likely in pipeline])
        if wrong is not None and self.world.pp_rank in wrong.odd:
            self.checks.add("divergence", step.index, "relay", wrong.message)
        if wrong is None and self.forward.mismatch:
            self.checks.add(
                "divergence", step.index, "forward",
                "the stage before built a batch with another number of tokens",
            )  # fmt: skip
        settled = all(self.world.gather(self.world.relay_channel.settle(ledgers)))
        if settled:
            self.world.relay_channel.finish()
        else:
            self.world.make_groups()

    def _record_heard(self, outputs: SampledOutputs, source: Step, now: Step) -> None:
        num_reqs = outputs.sampled_tokens.shape[0]
        if num_reqs != len(source.rows):
            self.checks.add(
                "divergence", now.index, "apply_sampled",
                f"{num_reqs} rows were applied as step {source.index}'s sample, "
                f"which had {len(source.rows)}",
                expected=len(source.rows), actual=num_reqs,
            )  # fmt: skip
            return
        columns = [outputs.idx_mapping, outputs.num_sampled, outputs.num_rejected]
        heard = torch.cat([*(c[:, None] for c in columns), outputs.sampled_tokens], dim=1)
        judge = partial(self.forward.tokens.heard, source=source, now=now)
        self.checks.record(heard, judge, copy=False)

    def _snapshot(self, expected: Iterator[Expectation], *, touched: bool = True) -> None:
        """Records the buffer after a phase; nothing is new where no call was made in it."""
        wanted = next(expected, None)
        if wanted is not None and touched and not self.calls.failed:
            self.checks.record(self.guard.snapshot(), partial(self.buffers.judge, expected=wanted))


def _has_counts(step: Step) -> bool:
    """Whether a count that is one too low would be news to anybody."""
    return any(r.num_sampled and not r.filtered for r in step.rows)
