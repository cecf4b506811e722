"""The schedule: the rules that every one obeys, worked examples, what the default suite shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ppharness.oracle.buffers import needs_sample
from ppharness.scenario import Scenario, read_scenario_file, schedule
from ppharness.scenario.schedule import Row, ScheduleError, Step, build_schedule, relay_depth

SUITE = Path(__file__).parent.parent / "configs"


def scenario(requests: str, events: str = "", **settings: Any) -> Scenario:
    """``scenario("a:5+3@1[2,0] b:7+1", "abort a 4, preempt b 6, drop a 7")``, K = 3.

    A request is ``id:prompt_tokens+max_tokens@arrive_at[accept]``; ``drop`` is an abort in flight.
    """
    return Scenario.model_validate(
        {
            "name": "example",
            "num_speculative_tokens": 3,
            "requests": tuple(_request(text) for text in requests.split()),
            "events": tuple(_event(text) for text in events.split(",") if text),
            **settings,
        }
    )


def _request(text: str) -> dict[str, Any]:
    text, _, accept = text.rstrip("]").partition("[")
    req_id, _, rest = text.partition(":")
    sizes, _, arrive_at = rest.partition("@")
    prompt_tokens, max_tokens = map(int, sizes.split("+"))
    return {
        "id": req_id,
        "prompt_tokens": prompt_tokens,
        "max_tokens": max_tokens,
        "arrive_at": int(arrive_at or 0),
        "accept": tuple(int(n) for n in accept.split(",") if n),
    }


def _event(text: str) -> dict[str, Any]:
    kind, req_id, step = text.split()
    if kind == "drop":
        return {"step": int(step), "abort": req_id, "in_flight": True}
    return {"step": int(step), kind: req_id}


def show(step: Step) -> str:
    """A step in one line: ``-a@7 +b@7 | verify a@7 5/8 4>2``.

    Of a row: its slot, computed tokens (and the host's count where it differs), scheduled
    tokens and sampled ones.
    """
    parts = [f"-{f.req_id}@{f.slot}" for f in step.freed]
    parts += [f"+{a.req_id}@{a.slot}" for a in step.added]
    rows = []
    for row in step.rows:
        slot = "x" if row.filtered else row.slot
        computed = str(row.num_computed_tokens)
        if row.num_computed_tokens_host != row.num_computed_tokens:
            computed += f"/{row.num_computed_tokens_host}"
        rows.append(f"{row.text}@{slot} {computed} {row.num_scheduled_tokens}>{row.num_sampled}")
    return " ".join(parts) + " | " + ", ".join(rows) if parts else ", ".join(rows)


def shown(scenario: Scenario, pp_size: int) -> list[str]:
    return [show(step) for step in build_schedule(scenario, pp_size)]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Small and crowded: few slots, tight budgets, events at any step."""
    num_drafts = draw(st.integers(0, 4))
    accept = st.lists(st.integers(0, num_drafts), max_size=4).map(tuple)
    requests = [
        {
            "id": "abcdef"[number],
            "prompt_tokens": draw(st.integers(1, 40)),
            "max_tokens": draw(st.integers(1, 14)),
            "arrive_at": draw(st.integers(0, 20)),
            "accept": draw(accept),
        }
        for number in range(draw(st.integers(1, 6)))
    ]
    longest = max(r["prompt_tokens"] + r["max_tokens"] for r in requests)  # type: ignore[operator]
    events = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["abort", "preempt", "drop"]))
        req_id = draw(st.sampled_from([r["id"] for r in requests]))
        events.append(_event(f"{kind} {req_id} {draw(st.integers(0, 40))}"))
    return Scenario.model_validate(
        {
            "name": "random",
            "max_num_reqs": draw(st.integers(1, 6)),
            "max_num_batched_tokens": draw(st.integers(1, 40)),
            "max_model_len": longest + draw(st.sampled_from([0, 1, 2, 5, 1000])),
            "num_speculative_tokens": num_drafts,
            "schedule": draw(st.sampled_from(["async", "sync"])),
            "mamba_cache_mode": draw(st.sampled_from(["none", "align"])),
            "mamba_block_size": draw(st.integers(1, 16)),
            "requests": tuple(requests),
            "events": tuple(events),
        }
    )


pp_sizes = st.integers(1, 16)


@cache
def suite() -> list[Scenario]:
    """The default suite."""
    return [s for path in sorted(SUITE.glob("**/*.yaml")) for s in read_scenario_file(path)]


def from_suite(name: str) -> tuple[Scenario, list[Step]]:
    """A scenario of the default suite and its schedule at pp_size 4."""
    found = next(s for s in suite() if s.name == name)
    return found, build_schedule(found, 4)


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


# Worked examples


def test_one_request_runs_every_pp_size_steps() -> None:
    assert shown(scenario("a:5+8[3,0,2]"), 4) == [
        "+a@7 | prefill a@7 0 5>1",
        *[""] * 3,
        "verify a@7 5 4>4",
        *[""] * 3,
        "verify a@7 9 4>1",
        *[""] * 3,
        "verify a@7 10/13 4>3",
        *[""] * 3,
        "-a@7 | ",
    ]


def test_sync_runs_in_every_step_and_the_host_knows_all() -> None:
    assert shown(scenario("a:5+8[3,0,2]", schedule="sync"), 4) == [
        "+a@7 | prefill a@7 0 5>1",
        "verify a@7 5 4>4",
        "verify a@7 9 4>1",
        "verify a@7 10 4>3",
        "-a@7 | ",
    ]


def test_prompt_is_cut_into_chunks_of_the_budget_decodes_first() -> None:
    chunked = scenario("a:4+3 b:20+1@1", max_num_batched_tokens=8, num_speculative_tokens=0)
    assert shown(chunked, 2) == [
        "+a@7 | prefill a@7 0 4>1",
        "+b@6 | prefill b@6 0 8>0",
        "decode a@7 4 1>1, prefill b@6 8 7>0",
        "prefill b@6 15 5>1",
        "decode a@7 5 1>1",
        "-b@6 | ",
        "-a@7 | ",
    ]


def test_budget_smaller_than_a_verify_step_cuts_the_drafts() -> None:
    tight = scenario("a:2+4[1] b:1+2", max_num_batched_tokens=3)
    assert shown(tight, 2) == [
        "+a@7 +b@6 | prefill a@7 0 2>1, prefill b@6 0 1>1",
        "",
        "verify a@7 2 3>2",
        "verify b@6 1 3>3",
        "verify a@7 4/5 3>2",
        "-b@6 | ",
        "-a@7 | ",
    ]


def test_model_length_cuts_the_drafts_by_the_hosts_count() -> None:
    assert shown(scenario("a:4+5[1,0]", max_model_len=9), 1) == [
        "+a@7 | prefill a@7 0 4>1",
        "verify a@7 4 4>2",
        "decode a@7 6/8 1>1",  # room for two more drafts, had the host known
        "verify a@7 7 2>1",
        "-a@7 | ",
    ]


def test_freed_slot_is_taken_at_once_and_last_freed_is_first_taken() -> None:
    crowded = scenario("a:3+1 b:3+1 c:3+1@0 d:4+1 e:5+1", max_num_reqs=3)
    assert shown(crowded, 2) == [
        "+a@2 +b@1 +c@0 | prefill a@2 0 3>1, prefill b@1 0 3>1, prefill c@0 0 3>1",
        "",
        "-a@2 -b@1 -c@0 +d@0 +e@1 | prefill d@0 0 4>1, prefill e@1 0 5>1",
        "",
        "-d@0 -e@1 | ",
    ]


@pytest.mark.parametrize(("step", "known"), [(5, 1), (6, 1), (7, 1), (8, 5)])
def test_preempted_resumes_in_its_slot_without_what_was_in_flight(step: int, known: int) -> None:
    """The verify step at 4 is known from step 8 on."""
    steps = build_schedule(scenario("a:6+20[3]", f"preempt a {step}"), 4)
    assert show(steps[step]) == f"-a@7 +a@7 | prefill a@7 0 {6 + known}>1"
    assert [f.life for f in steps[step].freed] == [0]
    assert [a.life for a in steps[step].added] == [1]
    assert steps[step].added[0].prompt_len == 6


def test_preempted_prompt_starts_over() -> None:
    steps = shown(scenario("a:20+1", "preempt a 1", max_num_batched_tokens=8), 4)
    assert steps[:4] == [
        "+a@7 | prefill a@7 0 8>0",
        "-a@7 +a@7 | prefill a@7 0 8>0",
        "prefill a@7 8 8>0",
        "prefill a@7 16 4>1",
    ]


def test_preempted_waits_before_all_others_until_the_budget_has_room() -> None:
    crowded = scenario(
        "a:4+3[0] b:20+1@1 c:2+1@2", "preempt a 3", max_num_reqs=2, max_num_batched_tokens=8
    )
    assert shown(crowded, 4)[:6] == [
        "+a@1 | prefill a@1 0 4>1",
        "+b@0 | prefill b@0 0 8>0",
        "prefill b@0 8 8>0",
        "-a@1 +a@1 | prefill b@0 16 4>1, prefill a@1 0 4>1",  # its first token was in flight
        "",
        "",
    ]


def test_abort_frees_before_the_step_an_abort_in_flight_after_it() -> None:
    gone = shown(scenario("a:5+9[3] b:5+9[3]", "abort a 4, drop b 4"), 4)
    assert gone[4:] == ["-a@7 | verify b@x 5 4>4", "-b@6 | "]


def test_abort_in_flight_between_steps_filters_nothing() -> None:
    steps = build_schedule(scenario("a:5+9[3]", "drop a 5"), 4)
    assert not any(row.filtered for step in steps for row in step.rows)
    assert [show(s) for s in steps[4:]] == ["verify a@7 5 4>4", "", "-a@7 | "]


def test_abort_while_waiting_or_before_arrival_leaves_no_trace() -> None:
    quiet = scenario("a:5+2 b:5+2 c:5+2@9", "abort b 2, abort c 0", max_num_reqs=1)
    only = [step for step in shown(quiet, 2) if step]
    assert only == ["+a@0 | prefill a@0 0 5>1", "verify a@0 5 4>4", "-a@0 | "]


def test_idle_until_a_late_arrival() -> None:
    assert shown(scenario("a:2+1 b:2+1@5"), 1) == [
        "+a@7 | prefill a@7 0 2>1", "-a@7 | ", "", "", "",
        "+b@7 | prefill b@7 0 2>1", "-b@7 | ",
    ]  # fmt: skip


def test_all_aborted_before_they_arrive() -> None:
    assert shown(scenario("a:2+1@3", "abort a 0"), 4) == [""]


@pytest.mark.parametrize("requests", ["a:1+1@1000000", "z:1+1 a:1+1000000"])
def test_too_many_steps(requests: str) -> None:
    endless = scenario(requests, max_model_len=2_000_000, num_speculative_tokens=0)
    with pytest.raises(ScheduleError, match=r"example: request 'a' is not finished after 200000"):
        build_schedule(endless, 4)


def test_as_many_steps_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MAX_STEPS", 5)
    assert len(build_schedule(scenario("a:5+1"), 4)) == 5
    with pytest.raises(ScheduleError):
        build_schedule(scenario("a:5+1"), 5)


# What the default suite shows, at pp_size 4


def test_suite_is_small_and_described() -> None:
    read = suite()
    assert [s.name for s in read] == [path.stem for path in sorted(SUITE.glob("**/*.yaml"))]
    assert all(s.description.endswith(".") for s in read)
    assert sum(s.pp_size is not None for s in read) <= 2
    assert sum(len(s.calls) or len(build_schedule(s, 4)) for s in read) <= 720


def rows_of(steps: list[Step]) -> list[Row]:
    return [row for step in steps for row in step.rows]


def frees_after_verify(steps: list[Step]) -> set[int]:
    """Steps between a row with drafts and the taking of its slot by someone else."""
    ran: dict[int, tuple[int, str, int]] = {}  # slot -> step, request and life of its last verify
    found = set()
    for step in steps:
        for added in step.added:
            at, *owner = ran.get(added.slot, (-1, added.req_id, added.life))
            if owner != [added.req_id, added.life]:
                found.add(step.index - at)
        ran |= {r.slot: (step.index, r.req_id, r.life) for r in step.rows if r.num_draft_tokens}
    return found


def test_founding_cases_have_chunks() -> None:
    for name, chunks in (("founding-case", 2), ("founding-case-long", 2)):
        _, steps = from_suite(name)
        assert sum(r.num_sampled == 0 for r in rows_of(steps)) >= chunks


def test_one_chunk_prompts_never_take_the_scalar_branch() -> None:
    _, steps = from_suite("one-chunk-prompts")
    assert all(needs_sample(r) for r in rows_of(steps))


def test_one_token_answer_has_steps_without_a_broadcast_and_mixed_ones() -> None:
    _, steps = from_suite("one-token-answer")
    needs = [{needs_sample(r) for r in s.rows if r.num_sampled} for s in steps]
    assert {False} in needs and {True, False} in needs


def test_near_length_cap_goes_on_where_the_host_sees_the_end() -> None:
    _, steps = from_suite("near-length-cap")
    fooled = {
        r.req_id
        for r in rows_of(steps)
        if r.num_computed_tokens_host + 1 >= r.max_seq_len > r.num_computed_tokens + r.num_sampled
    }
    assert len(fooled) >= 2


def test_steps_without_drafts_has_decodes_without_and_with_fewer() -> None:
    found, steps = from_suite("steps-without-drafts")
    assert found.num_speculative_tokens == 3
    drafts = {r.num_draft_tokens for r in rows_of(steps) if not r.is_prefilling}
    assert {0, 1, 3} <= drafts


def test_slots_are_reused_after_every_delay() -> None:
    _, steps = from_suite("slot-reuse-every-delay")
    assert {1, 2, 3, 4} <= frees_after_verify(steps)


def test_slot_is_reused_by_a_first_step_as_long_as_a_verify_step() -> None:
    found, steps = from_suite("slot-reuse-count-reset")
    firsts = [r for s in steps if s.freed for r in s.rows if r.num_computed_tokens == 0]
    assert found.num_speculative_tokens + 1 in {r.num_scheduled_tokens for r in firsts}


def test_mixed_batches_of_chunk_and_verify() -> None:
    _, steps = from_suite("mixed-chunk-and-verify")
    kinds = [(r.num_draft_tokens, r.num_sampled) for s in steps if len(s.rows) == 2 for r in s.rows]
    assert kinds == [(3, 4), (0, 0), (3, 2), (0, 0)]


def test_all_rows_are_freed_before_their_sample_comes() -> None:
    _, steps = from_suite("all-rows-freed")
    assert {r.req_id for r in steps[4].rows} == {f.req_id for s in steps[5:8] for f in s.freed}
    assert steps[7].added  # in a slot that one of them had


def test_preempted_and_resumed_in_one_step_and_slot() -> None:
    _, steps = from_suite("preempted-resumed-same-slot")
    both = [s for s in steps if {(f.req_id, f.slot) for f in s.freed}
            & {(a.req_id, a.slot) for a in s.added}]  # fmt: skip
    ran = {s.index - d for s in both for d in (1, 4) for r in steps[s.index - d].rows
           if r.req_id == "a" and r.num_draft_tokens}  # fmt: skip
    assert [s.index for s in both] == [5, 13]
    assert ran == {4, 9}  # one step before, and pp_size steps before


def test_preemption_in_prefill_and_in_decode_resumes_later() -> None:
    _, steps = from_suite("preempted-prefill-and-decode")
    lives = {(r.req_id, r.life) for r in rows_of(steps)}
    assert {("a", 0), ("a", 1), ("b", 0), ("b", 1)} <= lives
    assert {f.req_id for f in steps[6].freed} == {"a"} and not steps[6].added


def test_last_slot_is_live_or_free_when_a_chunk_is_dropped() -> None:
    for name, live in (("last-slot-live", True), ("last-slot-free", False)):
        found, steps = from_suite(name)
        assert found.idx_mapping_dtype == "int64"
        owned: set[int] = set()
        seen = []
        for step in steps:
            owned = (owned - {f.slot for f in step.freed}) | {a.slot for a in step.added}
            if any(r.filtered and not needs_sample(r) for r in step.rows):
                in_batch = found.max_num_reqs - 1 in {r.slot for r in step.rows}
                seen.append((found.max_num_reqs - 1 in owned, in_batch))
        assert seen and all(s == (live, False) for s in seen)


def test_aborts_in_flight_drop_one_row_and_whole_batches() -> None:
    _, steps = from_suite("aborts-in-flight")
    dropped = [[r.filtered for r in s.rows] for s in steps if any(r.filtered for r in s.rows)]
    assert dropped == [[False, True, False, False], [True], [True, True]]


def test_sparse_slots_are_five_and_one() -> None:
    _, steps = from_suite("sparse-slots")
    mappings = [[r.slot for r in s.rows] for s in steps if s.rows]
    assert mappings == [[7, 6, 5, 4, 3, 2, 1], [6, 5, 3, 2, 1], [5, 1], [5, 1], [1]]


def test_align_boundary_has_the_reported_numbers() -> None:
    _, steps = from_suite("align-boundary")
    numbers = [
        (r.num_computed_tokens, r.num_scheduled_tokens, r.num_sampled) for r in steps[4].rows
    ]
    assert numbers == [(13, 3, 3), (14, 3, 2), (15, 3, 1), (12, 3, 1)]


def test_busy_hour_has_everything() -> None:
    found, steps = from_suite("busy-hour")
    rows = rows_of(steps)
    assert 30 <= len(steps) <= 50 and len(found.requests) == 8
    assert {r.life for r in rows} >= {0, 1}
    assert any(
        len(s.rows) > 1 and {needs_sample(r) for r in s.rows} == {True, False} for s in steps
    )
    assert frees_after_verify(steps) & {1, 2, 3, 4}
    assert any(s.freed and s.added for s in steps) and any(not s.rows for s in steps)
