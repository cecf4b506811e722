"""Right targets that share little with the built-in one pass the whole suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from worlds import Run, target

TARGETS = ["Masks", "RowLoop", "ProgramPerRow", "ResetsOnRemove", "Lazy", "NewBuffer", "OnePacket"]


@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("name", TARGETS)
def test_passes_every_scenario(run_world: Callable[..., Run], name: str, nproc: int) -> None:
    configs = str(Path(__file__).resolve().parents[1] / "configs")
    run = run_world(configs, "more", target=target(f"right.py:{name}"), nproc=nproc)
    assert run.code == 0, run.stdout + run.stderr
    assert not run.findings()
    outcomes = set(run.outcomes().values())
    assert "passed" in outcomes and outcomes <= {"passed", "skipped"}
    for scenario in run.scenarios:
        if scenario["outcome"] == "skipped":
            assert scenario["reason"] and "stages" in scenario["reason"]
        else:
            assert scenario["checks"] > 0 and scenario["steps"] > 0
