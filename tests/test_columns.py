"""What ranks of one stage, or of one pipeline, may do apart from each other."""

from __future__ import annotations

from collections.abc import Callable

from worlds import VERIFY, Run, target


def test_pipelines_may_relay_in_ways_of_their_own(run_world: Callable[..., Run]) -> None:
    """What must agree is what meets in one communicator."""
    steps = []
    for name in ("builtin", target("unusual.py:ColumnsDiffer")):
        run = run_world(VERIFY, "more", nproc=4, args=("--tp", "2"), target=name)
        assert run.code == 0, run.stdout
        steps.append([scenario["steps"] for scenario in run.scenarios])
    assert steps[0] == steps[1] and any(steps[0])


def test_the_ledger_names_ranks_in_full(run_world: Callable[..., Run]) -> None:
    run = run_world(VERIFY, nproc=4, args=("--tp", "2", "--inject", "skip-broadcast@PP1_TP1:2"))
    assert run.code == 1
    (finding,) = run.findings()
    assert (finding["kind"], finding["label"], finding["step"]) == ("divergence", "PP1_TP1", 2)
    assert "PP1_TP1: no broadcast" in finding["message"]
    assert "PP0_TP1: broadcast" in finding["message"]


def test_one_rank_that_cannot_run_it_skips_it_for_all(run_world: Callable[..., Run]) -> None:
    run = run_world(VERIFY, nproc=2, target=target("unusual.py:SkipsOnFirst"), args=("--seed", "7"))
    assert run.code == 0, run.stdout + run.stderr
    (scenario,) = run.scenarios
    assert (scenario["outcome"], scenario["reason"]) == ("skipped", "not on the first stage")
    assert scenario["seed"] == 7
    assert [rank["outcome"] for rank in scenario["ranks"]] == ["skipped"] * 2
