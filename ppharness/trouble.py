"""When a rank hangs or is lost: who says what, who is the cause, who reports.

Every rank that still answers leaves a note in the store, also while its main thread
is blocked.  The lowest one of them judges all notes and reports.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from .findings import PHASES, ExceptionInfo, Finding, Frame, Phase

_GRACE = 2.0  # seconds for the others' notes
_REPORT_TIME = 10.0  # seconds a reporter may take before the next rank does it


@dataclass
class Seen:
    """What a host's board says of a rank."""

    step: int | None
    phase: str
    waiting: str  # what it waits for, "" when its own code runs
    still: float  # seconds since it last moved
    alive: bool


@dataclass
class Note:
    """What one rank says when a run is in trouble."""

    rank: int
    label: str
    step: int | None
    phase: str
    waiting: str  # what it waits for, "" when its own code runs
    still: float  # seconds since it last moved
    why: str  # why it thinks that there is trouble
    stack: str = ""
    scenario: int = 0  # index in the run
    raised: bool = False  # an exception outside of any guard ended it
    answered: bool = True  # False: made by the reporter for a rank that did not answer
    alive: bool = True
    findings: list[dict[str, Any]] = field(default_factory=list)
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)  # rank -> `Seen`, of its host

    @property
    def position(self) -> str:
        place = self.phase or "start-up"
        if self.step is not None:
            place = f"step {self.step}, {place}"
        return f"{place}: waits for {self.waiting}" if self.waiting else place


def exchange(
    store: Any, note: Note, world_size: int, missing: Callable[[], set[int]]
) -> dict[int, Note]:
    """Leaves this rank's note and collects the others', for a short while.

    Args:
        missing: ranks known to be dead, for which nobody needs to wait.
    """
    store.set(f"note/{note.rank}", json.dumps(asdict(note)))
    store.set("trouble", "1")
    notes: dict[int, Note] = {note.rank: note}
    deadline = time.monotonic() + _GRACE
    while len(notes) < world_size:
        for rank in range(world_size):
            if rank not in notes and store.check([f"note/{rank}"]):
                notes[rank] = Note(**json.loads(store.get(f"note/{rank}")))
        absent = set(range(world_size)) - set(notes)
        if absent <= missing() or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return notes


def take_turn(store: Any, rank: int, candidates: list[int]) -> bool:
    """Whether this rank is the one to report; waits for lower ones to have done so."""
    for turn in candidates:
        if turn == rank:
            return not bool(store.check(["reported"]))
        deadline = time.monotonic() + _REPORT_TIME
        while time.monotonic() < deadline:
            if store.check(["reported"]):
                return False
            time.sleep(0.05)
    return False


def verdict(notes: dict[int, Note], labels: Callable[[int], str]) -> list[Finding]:
    """Who is the cause.

    A dead rank comes first.  Then a rank whose own code does not come back while
    others wait.  Where all wait, the one that the least advanced wait for: it has gone
    past what they need.
    """
    dead = [n for n in notes.values() if not n.alive]
    if dead:
        return [_finding("lost_rank", n, f"{n.label} is gone; {_last_did(n)}") for n in dead]
    if any(n.raised for n in notes.values()):
        return []  # the exception is a finding already
    mute = [n for n in notes.values() if not n.answered]
    if mute:
        return [_finding("hang", n, f"{n.label} does not answer; {_last_did(n)}") for n in mute]
    running = [n for n in notes.values() if not n.waiting]
    if running:
        longest = max(n.still for n in running)
        stuck = [n for n in running if n.still >= 0.5 * longest]
        return [
            _finding("hang", n, f"{n.label} did not come back from {n.position} ({n.still:.1f} s)")
            for n in stuck
        ]
    first = min(notes.values(), key=_progress)
    behind = [n for n in notes.values() if _progress(n) == _progress(first)]
    wanted = {r for n in behind for r in notes if _names(n.waiting, labels(r))} - {
        n.rank for n in behind
    }
    culprits = [notes[r] for r in sorted(wanted)] or behind
    waiters = ", ".join(f"{n.label} waits for {n.waiting}" for n in behind)
    return [
        _finding("hang", n, f"{n.label} did not do what others wait for: {waiters}; "
                 f"it is at {n.position}")
        for n in culprits
    ]  # fmt: skip


def restore_finding(data: dict[str, Any]) -> Finding:
    """A finding from its form in a note."""
    error = data.pop("exception", None)
    finding = Finding(**data)
    if error:
        frames = [Frame(**f) for f in error["frames"]]
        finding.exception = ExceptionInfo(error["type"], error["message"], frames)
    return finding


def _finding(kind: str, note: Note, message: str) -> Finding:
    phase: Phase | None = note.phase if note.phase in PHASES else None
    return Finding(
        kind=kind,  # type: ignore[arg-type]
        rank=note.rank,
        label=note.label,
        step=note.step,
        phase=phase,
        message=message,
        stack=note.stack or None,
    )


def _last_did(note: Note) -> str:
    return f"last seen at {note.position}" if note.phase else "it was never seen"


def _progress(note: Note) -> tuple[int, int, int]:
    order: dict[str, int] = {name: place for place, name in enumerate(PHASES)}
    at_end = "at the end of step" in note.waiting
    return (note.scenario, note.step if note.step is not None else -1,
            len(order) if at_end else order.get(note.phase, 0))  # fmt: skip


def _names(waiting: str, label: str) -> bool:
    return label in waiting.replace(",", " ").replace(":", " ").split()
