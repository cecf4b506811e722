"""The rules that every schedule obeys, random ones and those of the default suite."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from schedules import pp_sizes, scenario, scenarios, suite

from ppharness.scenario import Scenario
from ppharness.scenario.schedule import Row, Step, build_schedule, relay_depth


@dataclass
class Life:
    """What one life of a request did, as the checker below sees it."""

    slot: int
    prefill_len: int
    rows: list[tuple[int, Row]] = field(default_factory=list)  # step and row
    freed_at: int | None = None

    @property
    def computed(self) -> int:
        return sum(r.num_scheduled_tokens - r.num_rejected for _, r in self.rows)

    def outputs(self, up_to: int | None = None) -> int:
        """Tokens that came out of steps up to and with `up_to`."""
        kept = [r.num_sampled for step, r in self.rows if up_to is None or step <= up_to]
        base = self.prefill_len - self.rows[0][1].prompt_len if self.rows else 0
        return base + sum(kept)

    def ready_at(self, depth: int) -> int:
        step, row = self.rows[-1]
        return step + (depth if row.num_sampled else 1)


class Checker:
    """Replays a schedule and holds each step against the rules; knows no scheduler."""

    def __init__(self, scenario: Scenario, pp_size: int):
        self.scenario = scenario
        self.depth = relay_depth(scenario, pp_size)
        self.requests = {r.id: r for r in scenario.requests}
        self.free_slots = list(range(scenario.max_num_reqs))
        self.running: dict[str, Life] = {}  # by admission
        self.lives: dict[str, list[Life]] = {r: [] for r in self.requests}
        self.verify_steps: Counter[str] = Counter()
        aborts = [e for e in scenario.events if e.abort]
        self.gone_at = dict.fromkeys(self.requests, 10**9)
        for event in aborts:
            at = event.step + event.in_flight
            self.gone_at[str(event.abort)] = min(self.gone_at[str(event.abort)], at)
        self.in_flight = {(e.step, e.abort) for e in aborts if e.in_flight}
        self.preempts = {(e.step, e.preempt) for e in scenario.events if e.preempt}

    def check(self, steps: list[Step]) -> None:
        for number, step in enumerate(steps):
            assert step.index == number
            self.freed(step)
            self.added(step)
            self.order(step)
            for row in step.rows:
                self.row(step, row)
            self.no_idle_budget(step)
        assert not self.running
        assert len(self.free_slots) == self.scenario.max_num_reqs
        assert not steps or not steps[-1].rows
        self.ends(len(steps))

    def freed(self, step: Step) -> None:
        """Exactly those that finished, were aborted or were preempted, once each."""
        expected = {r for r, life in self.running.items() if self.must_go(step.index, r, life)}
        assert {f.req_id for f in step.freed} == expected
        assert len(step.freed) == len(expected)
        for freed in step.freed:
            life = self.running.pop(freed.req_id)
            assert (freed.slot, freed.life) == (life.slot, len(self.lives[freed.req_id]) - 1)
            life.freed_at = step.index
            self.free_slots.append(freed.slot)

    def must_go(self, index: int, req_id: str, life: Life) -> bool:
        last = life.rows[-1] if life.rows else None
        finished = last is not None and last[1].is_last and last[0] + self.depth <= index
        return finished or index == self.gone_at[req_id] or (index, req_id) in self.preempts

    def added(self, step: Step) -> None:
        """Last freed slot first taken; a resumed request starts over with what was known."""
        for added in step.added:
            req_id, request = added.req_id, self.requests[added.req_id]
            assert request.arrive_at <= step.index < self.gone_at[req_id]
            assert req_id not in self.running
            assert added.slot == self.free_slots.pop()
            assert added.life == len(self.lives[req_id])
            assert added.num_computed_tokens == 0
            known = 0
            if self.lives[req_id]:
                before = self.lives[req_id][-1]
                assert before.freed_at is not None
                assert (before.freed_at, req_id) in self.preempts
                known = min(before.outputs(up_to=before.freed_at - self.depth), request.max_tokens)
                assert known < request.max_tokens
            assert added.prefill_len == request.prompt_tokens + known
            self.running[req_id] = Life(added.slot, added.prefill_len)
            self.lives[req_id].append(self.running[req_id])

    def order(self, step: Step) -> None:
        """Within the budget; decode rows first, by admission within each kind."""
        assert step.num_tokens <= self.scenario.max_num_batched_tokens
        admitted = list(self.running)
        keys = [(row.is_prefilling, admitted.index(row.req_id)) for row in step.rows]
        assert keys == sorted(set(keys))
        assert {a.req_id for a in step.added} <= {r.req_id for r in step.rows}

    def row(self, step: Step, row: Row) -> None:
        life, request = self.running[row.req_id], self.requests[row.req_id]
        k = self.scenario.num_speculative_tokens
        assert row.slot == life.slot
        assert row.life == len(self.lives[row.req_id]) - 1
        assert self.scenario.requests[row.req_num] is request
        assert (row.prompt_len, row.prefill_len) == (request.prompt_tokens, life.prefill_len)
        assert row.max_seq_len == request.prompt_tokens + request.max_tokens
        assert row.filtered == ((step.index, row.req_id) in self.in_flight)
        assert row.num_computed_tokens == life.computed
        ahead = row.num_computed_tokens_host - row.num_computed_tokens
        before = life.rows[-1][1] if life.rows else None
        if before is None:
            assert row.num_computed_tokens == ahead == 0
        else:
            assert not before.is_last
            assert step.index >= life.ready_at(self.depth)
            assert ahead == (before.num_rejected if self.scenario.schedule == "async" else 0)
        end = row.num_computed_tokens + row.num_scheduled_tokens
        assert row.num_scheduled_tokens >= 1
        if row.is_prefilling:
            assert end <= row.prefill_len
            assert row.num_draft_tokens == row.num_rejected == 0
            assert row.num_sampled == (end == row.prefill_len)
        else:
            known = life.outputs() - (row.prefill_len - row.prompt_len)
            assert row.num_computed_tokens == row.prefill_len + known - 1
            assert row.num_draft_tokens == row.num_scheduled_tokens - 1 <= k
            limit = self.scenario.max_model_len
            host_end = row.num_computed_tokens_host + row.num_scheduled_tokens
            assert host_end <= limit or row.num_draft_tokens == 0
            script = request.accept or (k,)
            scripted = script[self.verify_steps[row.req_id] % len(script)]
            assert row.num_sampled == 1 + min(scripted, row.num_draft_tokens)
            assert row.num_rejected == row.num_scheduled_tokens - row.num_sampled
            self.verify_steps[row.req_id] += row.num_draft_tokens > 0
        assert end <= row.max_seq_len + k
        life.rows.append((step.index, row))
        assert row.is_last == (life.outputs() >= request.max_tokens)

    def no_idle_budget(self, step: Step) -> None:
        """Who could run did: so a chunk follows a chunk, and nobody waits for no reason."""
        if step.num_tokens == self.scenario.max_num_batched_tokens:
            admitted = list(self.running)
            last = max(admitted.index(r.req_id) for r in step.rows)
            candidates = admitted[:last]
        else:
            candidates = list(self.running)
            waiting = [
                r
                for r, request in self.requests.items()
                if request.arrive_at <= step.index < self.gone_at[r]
                and r not in self.running
                and (not self.lives[r] or not self.finished(r))
            ]
            assert not waiting or not self.free_slots
        for req_id in candidates:
            steps = [at for at, _ in self.running[req_id].rows]
            if step.index not in steps:
                last_row = self.running[req_id].rows[-1][1]
                assert last_row.is_last or step.index < self.running[req_id].ready_at(self.depth)

    def finished(self, req_id: str) -> bool:
        """Whether a request's last life ran to its end, with nothing lost to a preemption."""
        life = self.lives[req_id][-1]
        step, row = life.rows[-1]
        return row.is_last and (life.freed_at is None or life.freed_at >= step + self.depth)

    def ends(self, num_steps: int) -> None:
        """All that were not aborted came to exactly their number of tokens."""
        for req_id, request in self.requests.items():
            if self.gone_at[req_id] > num_steps:
                assert self.finished(req_id)
                life = self.lives[req_id][-1]
                without_last = life.outputs(up_to=life.rows[-1][0] - 1)
                assert without_last < request.max_tokens <= life.outputs()


@settings(max_examples=200, deadline=None)
@given(scenarios(), pp_sizes)
@example(scenario("a:20+4@0[2]", "preempt a 1", max_num_reqs=1, max_num_batched_tokens=8), 4)
@example(scenario("a:5+5@0[3] b:3+2", "preempt a 5, drop a 5", max_num_reqs=1), 4)
@example(scenario("a:5+5@0[3] b:3+2", "preempt a 5, abort a 5", max_num_reqs=1), 4)
@example(scenario("a:5+5@0[3] b:3+2", "preempt a 8, abort b 8"), 4)  # at the end of its run
@example(scenario("a:5+5@0[3]", "preempt a 5, preempt a 6, preempt a 7"), 4)
def test_every_schedule_obeys_the_rules(random: Scenario, pp_size: int) -> None:
    Checker(random, pp_size).check(build_schedule(random, pp_size))


@settings(max_examples=50, deadline=None)
@given(scenarios(), pp_sizes)
def test_schedule_is_the_same_every_time(random: Scenario, pp_size: int) -> None:
    again = Scenario.model_validate(random.model_dump())
    assert build_schedule(random, pp_size) == build_schedule(again, pp_size)


@settings(max_examples=50, deadline=None)
@given(scenarios(), pp_sizes)
def test_sync_schedule_does_not_depend_on_pp_size(random: Scenario, pp_size: int) -> None:
    sync = random.model_copy(update={"schedule": "sync"})
    assert build_schedule(sync, pp_size) == build_schedule(sync, 1)


@pytest.mark.parametrize("pp_size", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("entry", [s for s in suite() if s.requests], ids=lambda s: s.name)
def test_default_suite_obeys_the_rules(entry: Scenario, pp_size: int) -> None:
    Checker(entry, pp_size).check(build_schedule(entry, pp_size))
