"""``ppharness matrix``: scenarios x targets, each target in a process of its own.

Two releases of an engine never meet in one process; what a release imports, patches
or breaks stays with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __version__
from .atomic_file import write_atomically
from .report.files import ReportFiles
from .report.matrix import matrix_markdown, matrix_text
from .world.processes import die_with_parent, say

SCHEMA = "ppharness.matrix/1"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_matrix(options: argparse.Namespace, names: Sequence[str], files: ReportFiles) -> int:
    """Runs the scenarios on every target; returns the highest exit code, 130 if interrupted.

    Args:
        names: what the command line named, passed on as it is.
    """
    columns: list[dict[str, Any]] = []
    with _Interrupts() as interrupts:
        for number, target in enumerate(options.target, start=1):
            if interrupts.received:
                break
            head = f"[{number}/{len(options.target)}] {target}"
            _progress(options, f"{head} ...", end="\n" if options.verbose else "")
            column = _run_target(options, target, names, interrupts)
            columns.append(column)
            head = f"{head}:" if options.verbose else ""
            how = "interrupted" if column["exit_code"] == 130 else column["outcome"]
            _progress(options, f"{head} {how} ({column['seconds']:.1f} s)")
            for text, times in column["result"].get("injections", {}).items():
                if not times:
                    say(f"{target}: --inject {text}: it never struck")
            if column["exit_code"] == 130:
                break
        code = max([0, *(column["exit_code"] for column in columns)])
        return max(_write(options, names, columns, files), 130 if interrupts.received else code)


def _write(
    options: argparse.Namespace,
    names: Sequence[str],
    columns: list[dict[str, Any]],
    files: ReportFiles,
) -> int:
    """The table on stdout and in the files; returns 2 where a file could not be written."""
    matrix = {"schema": SCHEMA, "version": __version__, "nproc": options.nproc, "columns": columns}
    code = 0
    for path, text in (
        (files.json, json.dumps(matrix, indent=1) + "\n"),
        (files.markdown, matrix_markdown(matrix, command_line(options, names))),
    ):
        try:
            if path is not None:
                write_atomically(path, text)
        except OSError as error:
            say(f"{path}: {error.strerror}")
            code = 2
    try:
        print(matrix_text(matrix), flush=True)
    except OSError as error:
        say(f"the result could not be shown: {error}")
    return code


class _Interrupts:
    """Hands SIGINT and SIGTERM on to the run that is under way, while it is entered.

    Both as SIGINT, which a run that already writes its result lets pass.
    """

    def __init__(self) -> None:
        self.received = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Interrupts:
        self._previous = {n: signal.signal(n, self._on_signal) for n in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def reach(self, process: subprocess.Popen[bytes]) -> None:
        """This run gets them from here on, and what came while it started."""
        self._process = process
        if self.received:
            process.send_signal(signal.SIGINT)

    def _on_signal(self, number: int, frame: object) -> None:
        self.received += 1
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)


def _progress(options: argparse.Namespace, text: str, end: str = "\n") -> None:
    if not options.quiet:
        with contextlib.suppress(OSError):  # where nobody reads it, there is nobody to tell
            print(text, end=end, file=sys.stderr, flush=True)


def command_line(options: argparse.Namespace, names: Sequence[str]) -> str:
    """The command that makes this matrix again."""
    targets = [word for target in options.target for word in ("--target", target)]
    nproc = ["--nproc", str(options.nproc)]
    return shlex.join(["ppharness", "matrix", *nproc, *_passed_on(options), *targets, *names])


def _passed_on(options: argparse.Namespace) -> list[str]:
    """The options that every target is run with, as words; none for a default."""
    words: list[str] = []
    for flag, value, default in (
        ("--device", options.device, "auto"),
        ("--tp", options.tp, 1),
        ("--seed", options.seed, 0),
        ("--timeout", options.timeout, 60.0),
        ("--perturb", options.perturb, None),
        ("--check", options.check, "each-scenario"),
        ("-k", options.expression, None),
    ):
        if value != default:
            words += [flag, str(value)]
    for injection in options.inject:
        words += ["--inject", injection]
    words += [] if options.ledger else ["--no-ledger"]
    return words + (["-x"] if options.stop_at_first else [])


def _run_target(
    options: argparse.Namespace, target: str, names: Sequence[str], interrupts: _Interrupts
) -> dict[str, Any]:
    started = time.monotonic()
    folder = tempfile.mkdtemp(prefix="ppharness-matrix-")
    try:
        column = _column(options, target, names, Path(folder), interrupts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return column | {"seconds": round(time.monotonic() - started, 1)}


def _column(
    options: argparse.Namespace,
    target: str,
    names: Sequence[str],
    folder: Path,
    interrupts: _Interrupts,
) -> dict[str, Any]:
    file = folder / "result.json"
    command = [
        sys.executable, "-m", "ppharness", "run", "--nproc", str(options.nproc),
        "--target", target, *_passed_on(options), "--json", str(file),
        *(["-v"] * options.verbose or ["-q"]), "--", *names,
    ]  # fmt: skip
    with open(folder / "stderr", "w+b") as stderr:  # a pipe could be held open by a stray process
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=stderr,
            stdout=None if options.verbose else subprocess.DEVNULL,
            start_new_session=True,  # what a terminal sends comes from here alone, once
            preexec_fn=die_with_parent,
        )  # fmt: skip
        interrupts.reach(process)
        code = process.wait()
        stderr.seek(0)
        said = stderr.read().decode(errors="replace")
    error = None
    try:
        result = json.loads(file.read_bytes())
    except (OSError, ValueError):
        result = {"outcome": "error", "scenarios": []}
        error = _why_no_result(said, code)
    if code < 0:
        error = f"ended by {_signal_name(-code)}"
    if error and interrupts.received:
        code, error = 130, "interrupted"
    elif error:
        code = 3 if code < 0 else max(code, 2)
    outcome = "error" if error else result["outcome"]
    return {
        "target": target, "exit_code": code, "error": error, "outcome": outcome, "result": result,
    }  # fmt: skip


def _why_no_result(said: str, code: int) -> str:
    lines = said.splitlines()
    errors = [line for line in lines if "error:" in line] or lines[-3:]
    return "\n".join(errors) or f"ended with exit code {code} and left no result"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
