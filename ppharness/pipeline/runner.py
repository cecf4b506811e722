"""One rank's life in one scenario: step after step, and how it ends.

A rank whose target raised keeps up its part of the communication until all ranks
agree, at the end of that step, to end the scenario.
"""

from __future__ import annotations

import time
from functools import partial

from ..findings import Finding
from ..oracle.buffers import BufferOracle, needs_sample
from ..scenario.model import Scenario
from ..scenario.schedule import Step, build_schedule, relay_depth
from ..targets.interface import Target, TargetConfig, TargetSkip
from ..world.device_fault import is_device_fault
from ..world.ledger import Ledger, find_disagreement
from ..world.world import World
from .batch import mapping_dtype_of
from .buffer_guard import BufferGuard
from .checks import CheckList
from .faults import SLOW_WAIT, Faults
from .forward import Forward, batch_text
from .judge import BufferJudge
from .model import make_recurrent_states
from .step_runner import StepRunner
from .target_calls import TargetCalls


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
        self.true_schedule = build_schedule(scenario, world.pp_size)
        self.checks = CheckList(world.rank, world.label, findings)
        self.calls = TargetCalls(world, self.checks, faults)
        self.calls.synchronous = judge_each_step and world.device.type == "cuda"
        self.steps_run = 0
        self.skip_reason: str | None = None
        mapping_dtype = mapping_dtype_of(scenario, target)
        states = make_recurrent_states(scenario, world.device)
        depth = relay_depth(scenario, world.pp_size)
        config = TargetConfig.for_scenario(scenario, world, mapping_dtype, depth, states)
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
        buffers = BufferJudge(
            self.checks, max_accepted=scenario.num_speculative_tokens + 1, exact=target.exact
        )
        late = faults.late_abort(scenario)
        self.schedule = build_schedule(late, world.pp_size) if late else self.true_schedule
        self.world.at(None, "make the target")
        try:
            state = target.make_mamba_state(config)
            self.one_step = StepRunner(
                config, world, self.schedule, self.forward, self.calls, buffers, faults,
                state=state,
                relay=target.make_token_relay(config, world.relay_channel),
                slots=target.make_request_slots(config),
                guard=BufferGuard(state, max_num_reqs=scenario.max_num_reqs),
            )  # fmt: skip
            self.calls.look = self.one_step.guard.look
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
                self.one_step.run(step, iter(self.oracle.step(self._truth_of(step))))
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
            if (agreed.stop or not agreed.same) and (self._settle(step) or agreed.stop):
                break
        else:
            self.world.relay_channel.finish()
        self.world.delay = 0.0
        self._drain_device()
        last = self.schedule[self.steps_run - 1].index
        if not self.world.device_lost:
            self.calls.judge(last)
        self.calls.end_of_scenario(last)

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
        if not self.steps_run or self.world.device_lost:
            return None
        return self.one_step.guard.final()

    def _truth_of(self, step: Step) -> Step:
        """The step as the scenario has it; this rank's differs where it heard of an abort late."""
        return self.true_schedule[min(step.index, len(self.true_schedule) - 1)]

    def _settle(self, step: Step) -> bool:
        """After a step that may not have gone well: no rank is left waiting for another.

        Returns:
            Whether the ranks of any pipeline disagreed; those of two pipelines may differ.
        """
        needed = any(needs_sample(r) for r in step.rows)
        likely = bool(self.world.ledger.posts) == needed
        likely &= self.world.ledger.batch == batch_text(self._truth_of(step))
        every: list[tuple[Ledger, bool]] = self.world.gather((self.world.ledger, likely))
        pipeline = [every[rank] for rank in self.world.pipeline]
        ledgers = [ledger for ledger, _ in pipeline]
        # A relay that raised has left its posts out: that is no news.
        wrong = None
        if self.world.ledger.compared and not any(e[0].broken for e in every):
            labels = [self.world.layout.label(rank) for rank in self.world.pipeline]
            wrong = find_disagreement(ledgers, [likely for _, likely in pipeline], labels)
        if wrong is not None and self.world.pp_rank in wrong.odd:
            self.checks.add("divergence", step.index, "relay", wrong.message)
        if wrong is None and self.forward.mismatch:
            self.checks.add(
                "divergence", step.index, "forward",
                "the stage before built a batch with another number of tokens",
            )  # fmt: skip
        settled = self.world.relay_channel.settle(ledgers)
        bad = wrong is not None or self.forward.mismatch
        everywhere = self.world.gather((settled, bad))
        if all(settled for settled, _ in everywhere):
            self.world.relay_channel.finish()
        else:
            self.world.make_groups()
        return any(bad for _, bad in everywhere)
