"""Bounds of rows and slots that only a large batch passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from worlds import Run, target

# Of the first call: rows from 1024 on, every tenth of which is filtered out.
LEFT_OUT = {(row * 601 + 3) % 1300 for row in range(1024, 1100) if row % 10 != 9}


@pytest.mark.parametrize(
    ("name", "scenario", "step", "slot"),
    [
        ("FirstRows", "calls-many-rows", 0, min(LEFT_OUT)),
        ("FirstRows32", "many-rows", 8, 15),  # request 32 has slot 47 - 32
        ("FirstSlots32", "many-rows", 8, 47),  # step 4 verifies, its counts are used in step 8
    ],
)
def test_a_bound_in_the_default_suite(
    run_world: Callable[..., Run], name: str, scenario: str, step: int, slot: int
) -> None:
    run = run_world(scenario, nproc=4, target=target(f"wrong_state.py:{name}"))
    assert run.code == 1
    rows = [f for f in run.findings() if f["kind"] in ("mismatch", "stray_write")]
    first = rows[0]
    assert (first["label"], first["step"], first["slot"]) == ("PP0", step, slot), rows[:3]
