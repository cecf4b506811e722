"""The schedule: worked examples."""

from __future__ import annotations

import pytest
from schedules import scenario, show, shown

from ppharness.scenario import schedule
from ppharness.scenario.schedule import ScheduleError, build_schedule


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
