"""A rank is blamed for what it did, not for what it was sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from worlds import VERIFY, Run, target

from ppharness.blame import mark_consequences
from ppharness.findings import Finding


@pytest.mark.parametrize(
    ("fault", "blamed"),
    [
        ("corrupt-hidden@0:3", "PP0"),
        ("corrupt-hidden@1:3", "PP1"),
        ("corrupt-counts@2:3", "PP2"),
        ("corrupt-counts@1:3", "PP1"),
        ("raise@0:3:apply_sampled", "PP0"),
        ("corrupt-slot@1:3", "PP1"),
    ],
)
def test_one_rank_is_at_fault(run_world: Callable[..., Run], fault: str, blamed: str) -> None:
    run = run_world(VERIFY, args=("--inject", fault))
    assert run.code == 1
    bad = [r["label"] for r in run.scenarios[0]["ranks"] if r["outcome"] != "passed"]
    assert bad == [blamed]
    assert {f["label"] for f in run.findings() if not f.get("consequence")} == {blamed}


def test_a_wrong_state_on_one_stage(run_world: Callable[..., Run]) -> None:
    run = run_world(VERIFY, target=target("wrong_state.py:CountsDraftsOnPP1"))
    outcomes = {r["label"]: r["outcome"] for r in run.scenarios[0]["ranks"]}
    assert outcomes == {"PP0": "passed", "PP1": "failed", "PP2": "passed"}
    after = [f for f in run.findings() if f.get("consequence")]
    assert {"PP2"} <= {f["label"] for f in after}
    assert f"and {len(after)} that follow" in run.stdout


def test_the_same_wrong_state_on_all_stages(run_world: Callable[..., Run]) -> None:
    """Each rank has its own wrong slot: none is excused by another."""
    run = run_world(VERIFY, target=target("wrong_state.py:CountsDrafts"))
    assert {r["outcome"] for r in run.scenarios[0]["ranks"]} == {"failed"}


def finding(rank: int, step: int | None, phase: str, kind: str = "divergence", **more: object):  # type: ignore[no-untyped-def]
    label = f"PP{rank}"
    return Finding(kind, rank, label, step, phase, "", req_id=more.pop("req", "a"), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cause", "seen", "follows"),
    [
        (finding(1, 3, "forward"), finding(2, 3, "forward"), True),  # downstream
        (finding(1, 3, "forward"), finding(0, 6, "apply_sampled"), True),  # told later
        (finding(1, 3, "forward"), finding(2, 3, "forward", req="b"), False),
        (finding(1, 3, "postprocess_state", "mismatch"), finding(2, 3, "forward"), False),
        (finding(1, 3, "at_use", "mismatch"), finding(2, 3, "forward"), True),
        (finding(1, 3, "at_use", "mismatch"), finding(2, 6, "at_use", "mismatch"), False),
        (finding(1, 3, "free", "exception", req=None), finding(2, 3, "forward", req="b"), True),
        (finding(2, 3, "relay", "exception", req=None), finding(2, 3, "forward"), False),
        (finding(1, None, "forward"), finding(2, 3, "forward"), False),
        (finding(1, 3, "forward"), finding(2, 3, "forward", "stray_write"), False),
        # The slot holds what its rank was told, or something else.
        (
            finding(0, 3, "apply_sampled", expected=4, actual=2),
            finding(0, 3, "at_use", "mismatch", expected=4, actual=2),
            True,
        ),
        (
            finding(0, 3, "apply_sampled", expected=4, actual=2),
            finding(0, 3, "at_use", "mismatch", expected=4, actual=3),
            False,
        ),
    ],
)
def test_what_follows_from_what(cause: Finding, seen: Finding, follows: bool) -> None:
    for order in ([cause, seen], [seen, cause]):
        mark_consequences(order, tp_size=1)
        assert (cause.consequence, seen.consequence) == (False, follows)


def test_columns_are_apart() -> None:
    """Ranks 1 and 2 of two stages of two: PP0_TP1 and PP1_TP0."""
    findings = [finding(1, 3, "forward"), finding(2, 3, "forward"), finding(3, 3, "forward")]
    mark_consequences(findings, tp_size=2)
    assert [f.consequence for f in findings] == [False, False, True]
