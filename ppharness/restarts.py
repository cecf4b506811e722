"""A run that lost its world: the report of its scenario, and going on after a restart.

Under torchrun with ``--max-restarts`` the ranks are started again; what has run so far
is kept in the agent's store, and the next attempt runs the rest.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, field

from .blame import mark_consequences
from .findings import NOT_RUN, RankReport, RunReport, ScenarioReport
from .scenario.model import Scenario
from .session import rows_per_step
from .trouble import Note, restore_finding, verdict
from .world.layout import Layout
from .world.stores import connect_store, get_parts, set_parts

_ROOM, _KEY = "run", "earlier"  # in the store, for all attempts
_OUTCOMES = {"exception": "crashed", "hang": "hung", "lost_rank": "hung"}


def troubled_scenario(
    scenario: Scenario, notes: dict[int, Note], layout: Layout, seed: int, interrupted: bool
) -> ScenarioReport:
    """The report of a scenario that did not come to its end, from all ranks' notes."""
    findings = [restore_finding(f) for n in notes.values() for f in n.findings]
    culprits = [] if interrupted else verdict(notes, layout.label)
    raised = any(n.raised for n in notes.values())
    outcome = "skipped" if interrupted else "crashed" if raised and not culprits else "hung"
    mark_consequences(findings, tp_size=layout.tp_size)
    guilty = {f.rank: f for f in [*findings, *culprits] if not f.consequence}
    return ScenarioReport(
        name=scenario.name,
        file=scenario.file,
        outcome=outcome,  # type: ignore[arg-type]
        reason="interrupted" if interrupted else None,
        seed=seed,
        steps=max((n.step or 0) for n in notes.values()) + 1,
        source=scenario.source,
        findings=culprits + findings,
        rows_per_step=rows_per_step(scenario, layout.pp_size),
        ranks=[
            RankReport(
                rank=n.rank,
                label=n.label,
                # A healthy rank that could not go on counts as passed.
                outcome=_OUTCOMES.get(guilty[n.rank].kind, "failed")  # type: ignore[arg-type]
                if n.rank in guilty
                else "passed",
                last_position=n.position,
                stack=n.stack or None,
            )
            for n in notes.values()
        ],
    )


@dataclass
class Restarts:
    """What earlier attempts of this run have done; all empty without restarts."""

    attempt: int = field(default_factory=lambda: _number("TORCHELASTIC_RESTART_COUNT"))
    most: int = field(default_factory=lambda: _number("TORCHELASTIC_MAX_RESTARTS"))
    earlier: RunReport | None = None

    def __post_init__(self) -> None:
        if not self.attempt:
            return
        store = connect_store(_ROOM)
        if (kept := get_parts(store, _KEY)) is not None:
            self.earlier = pickle.loads(kept)

    @property
    def left(self) -> bool:
        """Whether the launcher will start the ranks again."""
        return self.attempt < self.most

    def names_done(self) -> set[str]:
        """Scenarios that earlier attempts have run."""
        if self.earlier is None:
            return set()
        return {s.name for s in self.earlier.scenarios}

    def save(self, report: RunReport) -> None:
        """Keeps what has run for the next attempt."""
        merged = self.merge(report)
        merged.scenarios = [s for s in merged.scenarios if not (s.reason or "").startswith(NOT_RUN)]
        set_parts(connect_store(_ROOM), _KEY, pickle.dumps(merged))

    def merge(self, report: RunReport) -> RunReport:
        """The earlier attempts' scenarios, then this one's."""
        if self.earlier is None:
            return report
        self.earlier.go_on(report)
        return self.earlier


def _number(variable: str) -> int:
    return int(os.environ.get(variable, "0"))
