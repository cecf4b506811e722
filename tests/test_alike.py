"""Nodes that were not started with the same command: said before anything is run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import run_two_nodes

from ppharness.alike import first_difference, start_terms
from ppharness.scenario.model import Request, Scenario
from ppharness.session import RunOptions

SCENARIO = Scenario(name="s", requests=(Request(id="a", prompt_tokens=5, max_tokens=3),))
OPTIONS = RunOptions(scenarios=(SCENARIO,), target="here/my.py:Mine")
LABELS = ["PP0", "PP1", "PP2"]


def compare(changed: RunOptions, device: str = "cpu") -> str | None:
    """What is said where the last rank of three was started with `changed`."""
    same = start_terms(OPTIONS, "cpu")
    return first_difference([same, same, start_terms(changed, device)], LABELS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 5}, "--seed is 0 on PP0, PP1; 5 on PP2;"),
        ({"tp_size": 2}, "--tp is 1 on PP0, PP1; 2 on PP2;"),
        ({"target": "builtin"}, "--target is my.py:Mine on PP0, PP1; builtin on PP2;"),
        ({"perturb": 1}, "--perturb is None on PP0, PP1; 1 on PP2;"),
        ({"injections": ("kill@PP1:2",)}, "--inject is nothing on PP0, PP1; kill@PP1:2 on PP2;"),
        ({"stop_at_first": True}, "-x is off on PP0, PP1; on on PP2;"),
        ({"ledger": False}, "--no-ledger is off on PP0, PP1; on on PP2;"),
        ({"scenarios": ()}, "the list of scenarios is s on PP0, PP1; empty on PP2;"),
        ({"scenarios": (SCENARIO.model_copy(update={"max_num_reqs": 4}),)}, "the checksum of"),
    ],
    ids=lambda case: next(iter(case)) if isinstance(case, dict) else "",
)
def test_what_must_be_the_same(change: dict[str, Any], said: str) -> None:
    message = compare(replace(OPTIONS, **change))
    assert message is not None and said in message and "the same command" in message


def test_another_device() -> None:
    said = "the device is cpu on PP0, PP1; cuda on PP2;"
    assert said in (compare(OPTIONS, device="cuda") or "")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"timeout": 5.0},
        {"report": "r.json"},
        {"trace": True},
        {"device": "cpu"},
        {"judge_each_step": False},
        {"target": "elsewhere/my.py:Mine"},
        {"scenarios": (SCENARIO.model_copy(update={"file": "elsewhere/s.yaml"}),)},
    ],
    ids=lambda change: next(iter(change), "nothing"),
)
def test_what_may_differ(change: dict[str, Any]) -> None:
    assert compare(replace(OPTIONS, **change)) is None


def test_nodes_with_other_arguments_refuse_and_run_nothing(tmp_path: Path) -> None:
    """Without this, tokens that differ by the seed were blamed on the target."""
    runs = run_two_nodes(tmp_path, ["founding-case"], ["founding-case", "--seed", "5"])
    for run in runs:
        assert "exitcode  : 2" in run.stderr
        assert run.stderr.count("ppharness: error: the ranks were not started alike: --seed") == 1
        assert run.stdout == ""
