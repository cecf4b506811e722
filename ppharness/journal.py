"""What has run so far, left for the launcher by ranks that may be lost at any time.

Two files in the launcher's memory, which leave nothing behind: the journal, to which the
reporting rank adds each scenario as it ends, and the result, written by whoever reports.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from .findings import RunReport, ScenarioReport

_JOURNAL, _RESULT = "PPHARNESS_JOURNAL", "PPHARNESS_RESULT"  # in a rank's environment


def started_by_run() -> bool:
    """Whether `ppharness run` started this rank, and takes its result."""
    return _RESULT in os.environ


def note_scenario(head: RunReport, ended: ScenarioReport) -> None:
    """Adds a scenario to the journal, where there is one.

    Args:
        head: the run's report; only what stands above its scenarios is kept, once.
    """
    path = os.environ.get(_JOURNAL)
    if path is None:
        return
    with open(path, "ab") as file:
        if not file.tell():
            pickle.dump(replace(head, scenarios=[], trace=[]), file)
        pickle.dump(ended, file)


def hand_over(report: RunReport) -> int:
    """Leaves the result for the launcher, which reports for all; returns its exit code."""
    Path(os.environ[_RESULT]).write_bytes(pickle.dumps(report))
    return report.exit_code


class Journal:
    """The launcher's side of one world: open while the ranks live."""

    def __enter__(self) -> Journal:
        self._files = {name: os.memfd_create(name.lower()) for name in (_JOURNAL, _RESULT)}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for handle in self._files.values():
            os.close(handle)

    @property
    def environment(self) -> dict[str, str]:
        """What the ranks need to find it."""
        return {name: f"/proc/{os.getpid()}/fd/{fd}" for name, fd in self._files.items()}

    def result(self) -> RunReport | None:
        """What the reporting rank left; None when there is none or it is cut off."""
        return next(self._read(_RESULT), None)

    def so_far(self) -> RunReport | None:
        """The scenarios that ended, where nobody was left to report."""
        report, *scenarios = [*self._read(_JOURNAL)] or [None]
        if report is not None:
            report.scenarios = scenarios
            report.trace = [event for scenario in scenarios for event in scenario.trace]
        return report

    def _read(self, name: str) -> Iterator[Any]:
        with open(self._files[name], "rb", closefd=False) as file:
            while True:
                try:
                    yield pickle.load(file)
                except (EOFError, pickle.UnpicklingError):
                    return
