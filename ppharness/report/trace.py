"""A trace for chrome://tracing and Perfetto: what each rank did when."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from ppharness.findings import TraceEvent as TraceEvent
from ppharness.report.text import printable


def write_trace(events: Iterable[TraceEvent]) -> str:
    """Chrome trace JSON (object format): a process per rank, a bar per phase.

    Times are shifted so that the earliest event starts at 0.  Events without a
    finite time are left out.
    """
    kept = [e for e in events if math.isfinite(e.start_us) and math.isfinite(e.duration_us)]
    kept.sort(key=lambda e: (e.rank, e.start_us, -e.duration_us))
    origin = min((e.start_us for e in kept), default=0.0)
    records: list[dict[str, Any]] = []
    for rank, label in {e.rank: e.label for e in kept}.items():
        records += [
            _metadata("process_name", rank, name=printable(label)),
            _metadata("process_sort_index", rank, sort_index=rank),
            _metadata("thread_name", rank, name="phases"),
        ]
    records += [
        {
            "name": printable(event.phase),
            "cat": printable(event.scenario),
            "ph": "X",
            "ts": round(event.start_us - origin, 3),
            "dur": round(max(event.duration_us, 0.0), 3),
            "pid": event.rank,
            "tid": 0,
            "args": {"step": event.step, "scenario": printable(event.scenario)},
        }
        for event in kept
    ]
    body = {"displayTimeUnit": "ms", "traceEvents": records}
    return json.dumps(body, separators=(",", ":"), allow_nan=False) + "\n"


def _metadata(kind: str, rank: int, **args: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": 0, "args": args}
