"""However a target keeps its counts: right ones pass, what the contract excludes is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from worlds import VERIFY, Run, target


@pytest.mark.parametrize("name", ["RowOfATable", "NumpyView", "ReadOnly"])
def test_a_buffer_that_others_look_into(run_world: Callable[..., Run], name: str) -> None:
    """The harness may not part it from what the target kept before."""
    run = run_world(VERIFY, target=target(f"unusual.py:{name}"))
    assert run.code == 0, run.stdout
    assert run.scenarios[0]["checks"] > 100


def test_a_stray_write_behind_a_property(run_world: Callable[..., Run]) -> None:
    run = run_world(VERIFY, target=target("unusual.py:StrayThroughProperty"))
    assert run.code == 1
    first = run.findings()[0]
    assert (first["kind"], first["label"], first["slot"]) == ("stray_write", "PP1", -3), first


@pytest.mark.parametrize(
    ("name", "label", "step", "phase", "said"),
    [
        ("Floats", "PP0", None, None, "num_accepted_tokens is float32 [4], allowed: a tensor"),
        ("Grows", "PP1", 3, "apply_sampled", "num_accepted_tokens is int32 [8], allowed:"),
        ("Vanishes", "PP1", 0, "preprocess_state", "num_accepted_tokens is NoneType, allowed:"),
        ("FloatCounts", "PP1", 3, "apply_sampled", "num_sampled is float32 [1], allowed: integers"),
        ("Tuples", "PP0", 3, "apply_sampled", "idx_mapping is NoneType [], allowed: integers"),
    ],
)
def test_what_the_contract_excludes(
    run_world: Callable[..., Run], name: str, label: str, step: int | None, phase: str, said: str
) -> None:
    run = run_world(VERIFY, target=target(f"unusual.py:{name}"))
    assert run.code == 1, run.stderr
    first = run.findings()[0]
    where = (first["kind"], first["label"], first["step"], first["phase"])
    assert where == ("exception", label, step, phase), first
    assert first["message"].startswith("TypeError: ") and said in first["message"]
