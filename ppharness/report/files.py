"""Writes the report's files: whole or not at all, and never an exception.

Each file is written under a temporary name in its own folder, flushed to the
disk and renamed, so that a reader sees the old file or the new one, two runs at
once never mix, and a full disk leaves what was there before.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

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


def write_atomically(path: Path | str, text: str) -> None:
    """Replace ``path`` by ``text`` in one step.

    A link is followed; a device or pipe (``/dev/stdout``) is written directly.

    Raises:
        OSError: it could not be written; ``path`` is as it was.
    """
    data = text.encode("utf-8", "backslashreplace")
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        with open(path, "wb") as stream:
            stream.write(data)
        return
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    temporary = _temporary(folder)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _temporary(folder: str) -> str:
    return os.path.join(folder, f".ppharness-{secrets.token_hex(8)}.tmp")


def _mode(path: Path | str) -> int | None:
    """The mode of what ``path`` leads to, or None where there is nothing."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _sync_folder(folder: str) -> None:
    """Make the rename itself last; not every file system can, and the file is there."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _fault(path: str) -> str | None:
    """Why ``path`` cannot be written, found by making a file beside it."""
    if not path:
        return "an empty path"
    mode = _mode(path)
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
    temporary = _temporary(folder)
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
