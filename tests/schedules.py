"""Scenarios and their schedules for the tests: by hand, random, of the default suite."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ppharness.scenario import Scenario, read_scenario_file
from ppharness.scenario.schedule import Step, build_schedule

SUITE = Path(__file__).parent.parent / "configs"


def scenario(requests: str, events: str = "", **settings: Any) -> Scenario:
    """``scenario("a:5+3@1[2,0] b:7+1", "abort a 4, preempt b 6, drop a 7")``, K = 3.

    A request is ``id:prompt_tokens+max_tokens@arrive_at[accept]``; ``drop`` is an abort in flight.
    """
    return Scenario.model_validate(
        {
            "name": "example",
            "num_speculative_tokens": 3,
            "requests": tuple(_request(text) for text in requests.split()),
            "events": tuple(_event(text) for text in events.split(",") if text),
            **settings,
        }
    )


def _request(text: str) -> dict[str, Any]:
    text, _, accept = text.rstrip("]").partition("[")
    req_id, _, rest = text.partition(":")
    sizes, _, arrive_at = rest.partition("@")
    prompt_tokens, max_tokens = map(int, sizes.split("+"))
    return {
        "id": req_id,
        "prompt_tokens": prompt_tokens,
        "max_tokens": max_tokens,
        "arrive_at": int(arrive_at or 0),
        "accept": tuple(int(n) for n in accept.split(",") if n),
    }


def _event(text: str) -> dict[str, Any]:
    kind, req_id, step = text.split()
    if kind == "drop":
        return {"step": int(step), "abort": req_id, "in_flight": True}
    return {"step": int(step), kind: req_id}


def show(step: Step) -> str:
    """A step in one line: ``-a@7 +b@7 | verify a@7 5/8 4>2``.

    Of a row: its slot, computed tokens (and the host's count where it differs), scheduled
    tokens and sampled ones.
    """
    parts = [f"-{f.req_id}@{f.slot}" for f in step.freed]
    parts += [f"+{a.req_id}@{a.slot}" for a in step.added]
    rows = []
    for row in step.rows:
        slot = "x" if row.filtered else row.slot
        computed = str(row.num_computed_tokens)
        if row.num_computed_tokens_host != row.num_computed_tokens:
            computed += f"/{row.num_computed_tokens_host}"
        rows.append(f"{row.text}@{slot} {computed} {row.num_scheduled_tokens}>{row.num_sampled}")
    return " ".join(parts) + " | " + ", ".join(rows) if parts else ", ".join(rows)


def shown(scenario: Scenario, pp_size: int) -> list[str]:
    return [show(step) for step in build_schedule(scenario, pp_size)]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Small and crowded: few slots, tight budgets, events at any step."""
    num_drafts = draw(st.integers(0, 4))
    accept = st.lists(st.integers(0, num_drafts), max_size=4).map(tuple)
    requests = [
        {
            "id": "abcdef"[number],
            "prompt_tokens": draw(st.integers(1, 40)),
            "max_tokens": draw(st.integers(1, 14)),
            "arrive_at": draw(st.integers(0, 20)),
            "accept": draw(accept),
        }
        for number in range(draw(st.integers(1, 6)))
    ]
    longest = max(r["prompt_tokens"] + r["max_tokens"] for r in requests)  # type: ignore[operator]
    events = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["abort", "preempt", "drop"]))
        req_id = draw(st.sampled_from([r["id"] for r in requests]))
        events.append(_event(f"{kind} {req_id} {draw(st.integers(0, 40))}"))
    return Scenario.model_validate(
        {
            "name": "random",
            "max_num_reqs": draw(st.integers(1, 6)),
            "max_num_batched_tokens": draw(st.integers(1, 40)),
            "max_model_len": longest + draw(st.sampled_from([0, 1, 2, 5, 1000])),
            "num_speculative_tokens": num_drafts,
            "schedule": draw(st.sampled_from(["async", "sync"])),
            "mamba_cache_mode": draw(st.sampled_from(["none", "align"])),
            "mamba_block_size": draw(st.integers(1, 16)),
            "requests": tuple(requests),
            "events": tuple(events),
        }
    )


pp_sizes = st.integers(1, 16)


@cache
def suite() -> list[Scenario]:
    """The default suite."""
    return [s for path in sorted(SUITE.glob("**/*.yaml")) for s in read_scenario_file(path)]


def from_suite(name: str) -> tuple[Scenario, list[Step]]:
    """A scenario of the default suite and its schedule at pp_size 4."""
    found = next(s for s in suite() if s.name == name)
    return found, build_schedule(found, 4)
