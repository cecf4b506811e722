"""What has run is kept, however much it is and whoever is lost afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from worlds import VERIFY, Run, target

from ppharness.world.stores import get_parts, set_parts

MANY_STEPS = """
name: many-steps
requests: [{id: a, prompt_tokens: 4, max_tokens: 40}]
"""


def test_all_worlds_are_in_the_trace(run_world: Callable[..., Run], tmp_path: Path) -> None:
    """The second scenario loses the world; the third runs in another one."""
    after = VERIFY.replace("verify", "after")
    args = ("--inject", "kill@1:39", "--trace", "trace.json")
    run = run_world(VERIFY, MANY_STEPS, after, args=args)
    assert run.outcomes() == {"verify": "passed", "many-steps": "hung", "after": "passed"}
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    seen = {event["args"]["scenario"] for event in events if event["ph"] == "X"}
    assert {"verify", "after"} <= seen


def test_nobody_left_to_report(run_world: Callable[..., Run]) -> None:
    """Every rank is killed: the scenarios before are taken from the journal."""
    kills = tuple(w for rank in range(3) for w in ("--inject", f"kill@{rank}:39"))
    run = run_world(VERIFY, MANY_STEPS, VERIFY.replace("verify", "after"), args=kills)
    assert run.code == 3
    assert run.outcomes() == {"verify": "passed", "many-steps": "hung", "after": "passed"}
    assert run.scenarios[0]["checks"] > 0


def test_a_text_of_ten_megabytes(run_world: Callable[..., Run]) -> None:
    said = target("unusual.py:SaysMuch")
    run = run_world(VERIFY, VERIFY.replace("verify", "after"), target=said)
    assert run.code == 1, run.stderr
    assert run.outcomes() == {"verify": "crashed", "after": "crashed"}
    finding = run.findings("verify")[0]
    assert (finding["kind"], finding["label"]) == ("exception", "PP0")
    assert finding["message"].startswith("ValueError: much much")
    assert len(finding["message"]) < 20_000 and "10000000 characters" in finding["message"]


def test_a_value_larger_than_the_store_takes() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    value = bytes(range(256)) * 50_000
    assert get_parts(store, "big") is None
    set_parts(store, "big", value)
    assert get_parts(store, "big") == value
