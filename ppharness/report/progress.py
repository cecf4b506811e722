"""What is shown while scenarios run, on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from ppharness.findings import ScenarioReport
from ppharness.report.text import clip, printable


class _Console(Console):
    """Never hides the cursor: a run that is killed could not bring it back."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class RunProgress:
    """Progress of a run; a stream that cannot be written ends it quietly.

    Starts no thread (the bar moves when a scenario starts or ends), so that
    processes may be forked at any time.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._on = not quiet and self._stream is not None
        self._total = self._done = 0
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def start(self, total: int) -> None:
        """A run of ``total`` scenarios begins."""
        self._total, self._done = total, 0
        if self._on and _is_terminal(self._stream):
            self._guard(self._start_bar)

    def scenario_started(self, name: str) -> None:
        """The scenario ``name`` begins."""
        bar = self._bar
        if self._on and bar:
            text = clip(printable(name), 40)
            self._guard(lambda: bar.update(self._task, name=text, refresh=True))

    def scenario_finished(self, scenario: ScenarioReport) -> None:
        """A scenario ended: a line of its own, on a terminal only if it did not pass."""
        self._done += 1
        if not self._on:
            return
        places = len(str(self._total))
        line = (
            f"[{self._done:>{places}}/{self._total}] {printable(scenario.name)} ... "
            f"{scenario.outcome} ({scenario.seconds:.2f} s)"
        )
        bar = self._bar
        if bar is None:
            self._guard(lambda: self._write(line))
            return
        self._guard(lambda: bar.update(self._task, advance=1, refresh=True))
        if scenario.outcome not in ("passed", "skipped"):
            self._guard(lambda: bar.console.print(Text(line, style="red"), soft_wrap=True))

    def stop(self) -> None:
        """The run is over, however it ended; may be called more than once."""
        bar, self._bar = self._bar, None
        if bar:
            self._guard(bar.stop)

    def _start_bar(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[name]}", markup=False),
            console=_Console(file=self._stream, highlight=False, markup=False),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("scenarios", total=self._total, name="")
        self._bar.start()

    def _write(self, line: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "ascii"
        safe = line.encode(encoding, "backslashreplace").decode(encoding)
        self._stream.write(safe + "\n")
        self._stream.flush()

    def _guard(self, show: Callable[[], object]) -> None:
        """Progress is never worth a run: a closed pipe or a full disk ends it."""
        try:
            show()
        except (OSError, ValueError):
            self._on, self._bar = False, None


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except (OSError, ValueError):
        return False
