"""Writes the report's files: whole or not at all, and never an exception."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from ppharness.atomic_file import mode_of, temporary_in, write_atomically
from ppharness.findings import RunReport
from ppharness.report.json_report import render_json
from ppharness.report.junit import render_junit
from ppharness.report.trace import write_trace


@dataclass(frozen=True)
class ReportFiles:
    """Where to write each form of the report; None writes none."""

    json: Path | str | None = None
    junit: Path | str | None = None
    markdown: Path | str | None = None
    html: Path | str | None = None
    trace: Path | str | None = None

    def named(self) -> Iterator[tuple[str, str]]:
        """(option, path) of those that were asked for."""
        for one in fields(self):
            path = getattr(self, one.name)
            if path is not None:
                yield one.name, os.fspath(path)


def check_writable(targets: ReportFiles) -> list[str]:
    """What would keep the files from being written, a message each; call it before a run."""
    faults: list[str] = []
    seen: dict[str, str] = {}
    for option, path in targets.named():
        try:
            fault = _fault(path)
            where = os.path.realpath(path)
        except (OSError, ValueError) as error:
            fault, where = _why(error), path
        if fault:
            faults.append(f"--{option} {path!r}: {fault}")
        elif where in seen and where != os.devnull:
            faults.append(f"--{option} {path!r}: --{seen[where]} names the same file")
        seen.setdefault(where, option)
    return faults


def write_reports(report: RunReport, targets: ReportFiles) -> list[str]:
    """Write every file that ``targets`` names; returns what went wrong, a message each.

    One file that cannot be made or written does not keep the others from it.
    """
    faults: list[str] = []
    for option, path in targets.named():
        try:
            text = _RENDERERS[option](report)
        except Exception as error:  # a fault of ours must not lose the other files
            faults.append(f"--{option} {path!r}: not made: {type(error).__name__}: {error}")
            continue
        try:
            write_atomically(path, text)
        except (OSError, ValueError) as error:
            faults.append(f"--{option} {path!r}: not written: {_why(error)}")
    return faults


def _fault(path: str) -> str | None:
    """Why ``path`` cannot be written, found by making a file beside it."""
    if not path:
        return "an empty path"
    mode = mode_of(path)
    if mode is not None and stat.S_ISDIR(mode):
        return "is a folder"
    if mode is not None and not os.access(path, os.W_OK):
        return "is not writable"
    if mode is not None and not stat.S_ISREG(mode):
        return None
    if path.endswith(os.sep):
        return "names a folder"
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        what = "is not a folder" if os.path.exists(folder) else "does not exist"
        return f"folder {folder!r} {what}"
    if len(os.fsencode(os.path.basename(path))) > 255:
        return "the name is too long"
    temporary = temporary_in(folder)
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        return f"cannot write in folder {folder!r}: {_why(error)}"
    with contextlib.suppress(OSError):
        os.unlink(temporary)
    return None


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _markdown(report: RunReport) -> str:
    from ppharness.report.markdown import render_markdown

    return render_markdown(report)


def _html(report: RunReport) -> str:
    from ppharness.report.html import render_html  # Jinja2 only where a page is asked for

    return render_html(report)


_RENDERERS: dict[str, Callable[[RunReport], str]] = {
    "json": render_json,
    "junit": render_junit,
    "markdown": _markdown,
    "html": _html,
    "trace": lambda report: write_trace(report.trace),
}
