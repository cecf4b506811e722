"""Every wrong target is found where it goes wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from worlds import Run, target
from wrong_cases import (
    ALIGN,
    ANY,
    MIXED,
    NO_EMPTY_STEP,
    RAISING,
    RELAY,
    STALE_HEALS,
    STATE,
    TAKING_TURNS,
    THREE,
    VERIFY,
    Raising,
    Wrong,
)


def check(run: Run, wrong: Wrong) -> None:
    """The first finding of a run of one scenario on 3 ranks is the expected one."""
    assert run.code == 1, run.stderr
    assert run.report is not None
    assert (run.report["exit_code"], run.report["outcome"]) == (1, "failed")
    (scenario,) = run.scenarios
    assert scenario["outcome"] == "failed"
    findings = scenario["findings"]
    first = findings[0]
    place = ("kind", "step", "phase", "slot")
    assert {key: first[key] for key in place} == {key: getattr(wrong, key) for key in place}, first
    # Ranks that found the very same; what follows from it on others has other values.
    same = (*place, "expected", "actual")
    ranks = {f["rank"] for f in findings if all(f.get(key) == first[key] for key in same)}
    assert ranks == set(wrong.ranks)
    assert first["rank"] == wrong.ranks[0]
    for key in ("expected", "actual", "req_id"):
        value = getattr(wrong, key)
        if value is not ANY:
            assert first[key] == value, (key, first)
    assert all(f["label"] == f"PP{f['rank']}" for f in findings)
    rows = scenario["ranks"]
    assert [row["rank"] for row in rows] == [0, 1, 2]
    for row in rows:
        bad = any(f["rank"] == row["rank"] and not f.get("consequence") for f in findings)
        assert row["outcome"] == ("failed" if bad else "passed")
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("wrong", STATE, ids=str)
def test_state(run_world: Callable[..., Run], wrong: Wrong) -> None:
    check(run_world(wrong.scenario, target=target(f"wrong_state.py:{wrong.target}")), wrong)


@pytest.mark.parametrize("wrong", RELAY, ids=str)
def test_relay(run_world: Callable[..., Run], wrong: Wrong) -> None:
    check(run_world(wrong.scenario, target=target(f"wrong_relay.py:{wrong.target}")), wrong)


@pytest.mark.parametrize("wrong", ALIGN, ids=str)
def test_align(run_world: Callable[..., Run], wrong: Wrong) -> None:
    check(run_world(wrong.scenario, target=target(f"wrong_align.py:{wrong.target}")), wrong)


@pytest.mark.parametrize("raising", RAISING, ids=str)
def test_raising(run_world: Callable[..., Run], raising: Raising) -> None:
    """The rank that raised is told from the others; the next scenario runs all the same."""
    run = run_world(raising.scenario, THREE, target=target(f"raising.py:{raising.target}"))
    assert (run.code, run.scenarios[0]["outcome"]) == (1, "crashed")
    assert run.report is not None and run.report["outcome"] == "crashed"
    findings = run.scenarios[0]["findings"]
    assert [f["rank"] for f in findings] == list(raising.ranks)
    for finding in findings:
        assert (finding["kind"], finding["label"]) == ("exception", f"PP{finding['rank']}")
        assert (finding["step"], finding["phase"]) == (raising.step, raising.phase)
        exception = finding["exception"]
        assert (exception["type"], exception["message"]) == ("RuntimeError", "raised on purpose")
        frame = exception["frames"][-1]
        assert frame["function"] == raising.function
        assert frame["file"].endswith("raising.py") and frame["line"] > 1
    for row in run.scenarios[0]["ranks"]:
        assert row["outcome"] == ("crashed" if row["rank"] in raising.ranks else "passed")
    assert run.scenarios[1]["outcome"] == "crashed"
    assert {f["rank"] for f in run.findings("three")} == set(raising.ranks)
    assert "raised on purpose" in run.stdout
    assert "Traceback" not in run.stderr


def test_control_characters_of_a_message_do_not_reach_the_terminal(
    run_world: Callable[..., Run],
) -> None:
    run = run_world(VERIFY, target=target("raising.py:Control"))
    assert run.code == 1
    (finding,) = run.findings()
    assert finding["exception"]["message"].startswith("red \x1b[31m, bell \x07, nul \x00")
    shown = run.stdout + run.stderr
    bad = [c for c in shown if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    assert not bad and "\u202e" not in shown
    assert "bell" in shown


def test_buffer_of_the_wrong_shape(run_world: Callable[..., Run]) -> None:
    """The state module was made, but cannot be used."""
    run = run_world(VERIFY, target=target("wrong_state.py:LongBuffer"))
    assert (run.code, run.outcomes()) == (1, {"verify": "crashed"})
    assert [f["rank"] for f in run.findings()] == [0, 1, 2]
    for finding in run.findings():
        assert (finding["kind"], finding["step"]) == ("exception", None)
        assert "[5]" in finding["message"] and "[4]" in finding["message"]


def test_exception_without_text(run_world: Callable[..., Run]) -> None:
    """An exception whose ``str`` raises is an exception like any other."""
    run = run_world(VERIFY, target=target("raising.py:Silent"))
    assert run.code == 1, run.stderr
    (finding,) = run.findings()
    assert (finding["kind"], finding["rank"], finding["step"]) == ("exception", 1, 0)
    assert finding["exception"]["type"] == "_SilentError"


@pytest.mark.parametrize(
    ("name", "scenarios"),
    [
        ("wrong_relay.py:StandsStill", [NO_EMPTY_STEP]),
        ("wrong_relay.py:NoGeneration", [STALE_HEALS, VERIFY]),
        ("wrong_relay.py:AlwaysTrue", [MIXED, VERIFY]),
        ("wrong_relay.py:AlwaysFalse", [MIXED, VERIFY]),
        ("wrong_state.py:ScalarOnLastRank", [MIXED, VERIFY]),
        ("wrong_state.py:Wraps", [VERIFY, THREE]),
        ("wrong_state.py:FirstTwoRows", [VERIFY, MIXED, TAKING_TURNS]),
    ],
)
def test_not_seen_where_it_makes_no_difference(
    run_world: Callable[..., Run], name: str, scenarios: list[str]
) -> None:
    """Without ``exact`` only what every implementation must keep is checked."""
    run = run_world(*scenarios, target=target(name))
    assert run.code == 0, run.stdout
    assert set(run.outcomes().values()) == {"passed"}
    assert not run.findings()
