"""What a rank knows of a run so far, and the reports that it makes of it."""

from __future__ import annotations

from typing import Any

from .findings import Finding, RunReport, ScenarioReport
from .journal import note_scenario
from .restarts import troubled_scenario
from .roll_call import RollCall
from .session import RunOptions, bare_report, not_run
from .trouble import Note
from .world.device import DevicePlan
from .world.flight_record import record_prefix, save_flight_record
from .world.layout import Layout


class RunRecord:
    """The scenarios that have ended, and the findings of the one that runs."""

    def __init__(self, options: RunOptions, plan: DevicePlan, layout: Layout, store: Any):
        self.options, self.plan, self.layout, self.store = options, plan, layout, store
        self.report: RunReport | None = None  # its head, once there is a target
        self.finished: list[ScenarioReport] = []
        self.current = 0  # index of the scenario that runs
        self.partial: list[Finding] = []  # findings of the running scenario on this rank
        self._flight_record = ""  # prefix of its files beside the report, "" for none

    def add(self, result: ScenarioReport) -> None:
        """A scenario has ended."""
        assert self.report is not None
        self.finished.append(result)
        self.report.trace += result.trace

    def skip_rest(self, first: int, reason: str) -> None:
        """The scenarios from index `first` on are not run."""
        for scenario in self.options.scenarios[first:]:
            self.finished.append(not_run(scenario, self.layout, self.options.seed, reason))

    def checkpoint(self) -> None:
        """What has run so far, for a launcher that no rank is left to report to."""
        assert self.report is not None
        note_scenario(self.report, self.finished[-1])

    def keep_flight_record(self, report: str) -> None:
        """What this rank's communicators did, beside the file `report`."""
        if save_flight_record(report, self.layout.rank):
            self._flight_record = record_prefix(report)

    def ended(self, *, interrupted: bool) -> RunReport:
        """The report of a run whose ranks are all there at its end."""
        layout = self.layout
        report = self.report or bare_report(
            self.options, self.plan, layout.world_size, layout.local_world_size
        )
        report.scenarios, report.interrupted = self.finished, interrupted
        report.injections = {  # how often each fault on purpose struck, on whatever rank
            text: int(self.store.check([f"fired/{text}"])) for text in self.options.injections
        }
        return report

    def troubled(self, notes: dict[int, Note], roll: RollCall, interrupted: bool) -> RunReport:
        """The report of a run that did not come to its end, from the notes of who answered."""
        for rank in range(self.layout.world_size):
            if rank not in notes:
                notes[rank] = roll.note_of_silent(rank, self.current, list(notes.values()))
        notes = dict(sorted(notes.items()))
        number = min(max(n.scenario for n in notes.values()), len(self.options.scenarios) - 1)
        scenario = self.options.scenarios[number]
        ended = troubled_scenario(scenario, notes, self.layout, self.options.seed, interrupted)
        if len(self.finished) <= number:
            self.finished.append(ended)
        else:  # after the last scenario: the fault belongs to it all the same
            self.finished[-1].findings += ended.findings
            self.finished[-1].outcome = ended.outcome
        reason = "interrupted" if interrupted else f"the world was lost in {scenario.name}"
        self.skip_rest(number + 1, f"not run: {reason}")
        report = self.ended(interrupted=interrupted)
        if self._flight_record:
            where = f"{self._flight_record}*"
            report.notes.append(f"flight record of each rank that answered: {where}")
        return report
