"""Scenarios of too many steps are refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario_files import write
from worlds import JSON, PPHARNESS, TORCHRUN, run_fresh

from ppharness.scenario import Request, Scenario, ScenarioError, read_scenario_file, schedule
from ppharness.scenario.lengths import check_lengths

TWO = """\
name: late
requests:
  - {id: a, prompt_tokens: 8, max_tokens: 4}
  - id: b
    prompt_tokens: 8
    max_tokens: 4
    arrive_at: 500000
---
name: fine
requests: [{id: a, prompt_tokens: 8, max_tokens: 4}]
---
name: endless
requests: [{id: a, prompt_tokens: 8, max_tokens: 60000}]
"""
LATE = (
    "x.yaml:7: requests[1].arrive_at: found 500000, allowed at most 199999, since a scenario has "
    "at most 200000 steps"
)
ENDLESS = (
    "x.yaml:13: requests[0]: found a request that has not ended after 200000 steps on 4 stages, "
    "allowed scenarios of at most 200000 steps"
)
RANKS = ["--nproc-per-node", "2", "-m", "ppharness"]


def test_all_of_them_are_told(tmp_path: Path) -> None:
    write(tmp_path, TWO)
    run = run_fresh(tmp_path, "validate", "x.yaml")
    assert (run.code, run.stdout) == (2, "")
    assert run.stderr.splitlines() == [f"ppharness: error: {text}" for text in (LATE, ENDLESS)]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([*PPHARNESS, "run", "--nproc", "2", "--json", JSON], 2),
        ([*PPHARNESS, "matrix", "--nproc", "2", "--target", "builtin", "--json", JSON], 2),
        ([*TORCHRUN, *RANKS, "--json", JSON], 1),
    ],
    ids=["run", "matrix", "torchrun"],
)
def test_refused_before_anything_runs(tmp_path: Path, command: list[str], code: int) -> None:
    """For the world that would run: on two stages the third scenario does end."""
    write(tmp_path, TWO)
    run = run_fresh(tmp_path, "x.yaml", command=tuple(command))
    assert (run.code, run.stdout, run.report) == (code, "", None)
    errors = [line for line in run.stderr.splitlines() if "ppharness: error: " in line]
    assert errors == [f"ppharness: error: {LATE}"]
    assert "[1/" not in run.stderr


def test_those_of_another_size_are_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "MAX_STEPS", 10)
    text = "pp_size: 3\nname: x\nrequests: [{id: a, prompt_tokens: 8, max_tokens: 40}]\n"
    (scenario,) = read_scenario_file(write(tmp_path, text))
    check_lengths([scenario], 2)
    for size in (3, None):
        with pytest.raises(ScenarioError, match=r"x.yaml:3: requests\[0\]: .* on 3 stages"):
            check_lengths([scenario], size)


def test_one_that_is_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MAX_STEPS", 10)
    request = Request(id="a", prompt_tokens=8, max_tokens=40)
    with pytest.raises(ScenarioError, match=r"^requests\[0\]: "):
        check_lengths([Scenario(name="x", requests=(request,))])
