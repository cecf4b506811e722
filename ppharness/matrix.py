"""``ppharness matrix``: scenarios x targets, each target in a process of its own.

Two releases of an engine never meet in one process; what a release imports, patches
or breaks stays with it.
"""

from __future__ import annotations

import argparse
import json
import os
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
from .world.processes import say

SCHEMA = "ppharness.matrix/1"


def run_matrix(options: argparse.Namespace, names: Sequence[str], files: ReportFiles) -> int:
    """Runs the scenarios on every target; returns the highest exit code.

    Args:
        names: what the command line named, passed on as it is.
    """
    columns = []
    for number, target in enumerate(options.target, start=1):
        head = f"[{number}/{len(options.target)}] {target}"
        _progress(options, f"{head} ...", end="\n" if options.verbose else "")
        column = _run_target(options, target, names)
        columns.append(column)
        head = f"{head}:" if options.verbose else ""
        _progress(options, f"{head} {column['outcome']} ({column['seconds']:.1f} s)")
        for text, times in column["result"].get("injections", {}).items():
            if not times:
                say(f"{target}: --inject {text}: it never struck")
        if column["exit_code"] == 130:
            break
    matrix = {"schema": SCHEMA, "version": __version__, "nproc": options.nproc, "columns": columns}
    print(matrix_text(matrix), flush=True)
    code = max(int(column["exit_code"]) for column in columns)
    for path, text in (
        (files.json, json.dumps(matrix, indent=1) + "\n"),
        (files.markdown, matrix_markdown(matrix, command_line(options, names))),
    ):
        try:
            if path is not None:
                write_atomically(path, text)
        except OSError as error:
            say(f"{path}: {error.strerror}")
            code = max(code, 2)
    return code


def _progress(options: argparse.Namespace, text: str, end: str = "\n") -> None:
    if not options.quiet:
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


def _run_target(options: argparse.Namespace, target: str, names: Sequence[str]) -> dict[str, Any]:
    started = time.monotonic()
    folder = tempfile.mkdtemp(prefix="ppharness-matrix-")
    try:
        column = _column(options, target, names, Path(folder) / "result.json")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return column | {"seconds": round(time.monotonic() - started, 1)}


def _column(
    options: argparse.Namespace, target: str, names: Sequence[str], file: Path
) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "ppharness", "run", "--nproc", str(options.nproc),
        "--target", target, *_passed_on(options), "--json", str(file),
        *(["-v"] * options.verbose or ["-q"]), "--", *names,
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=None if options.verbose else subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, env=environment,
        errors="replace",
    )  # fmt: skip
    try:
        _, said = process.communicate()
    except KeyboardInterrupt:
        _, said = process.communicate()
    column: dict[str, Any] = {"target": target, "exit_code": process.returncode, "error": None}
    try:
        result = json.loads(file.read_bytes())
    except (OSError, ValueError):
        result = {"outcome": "error", "scenarios": []}
        column["exit_code"] = max(2, process.returncode)
        column["error"] = _why_no_result(said, process.returncode)
    if process.returncode < 0:
        column |= {"exit_code": 3, "error": f"ended by {_signal_name(-process.returncode)}"}
    outcome = "error" if column["error"] else result["outcome"]
    return column | {"outcome": outcome, "result": result}


def _why_no_result(said: str, code: int) -> str:
    lines = said.splitlines()
    errors = [line for line in lines if "error:" in line] or lines[-3:]
    return "\n".join(errors) or f"ended with exit code {code} and left no result"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
