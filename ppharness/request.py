"""What a command line asks for, as every rank needs it, and where its result goes."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import REPORT_KINDS
from .report.files import ReportFiles, check_writable
from .scenario.catalog import UsageError, resolve, select
from .scenario.lengths import check_lengths
from .scenario.model import Scenario
from .world.errors import WorldError

if TYPE_CHECKING:
    from .findings import RunReport
    from .session import RunOptions


def chosen_scenarios(options: argparse.Namespace, num_ranks: int) -> list[Scenario]:
    """What the command line names, after ``-k``, for a world of so many ranks.

    Raises:
        ScenarioError, UsageError: a bad file, a name that is not known, no match, a
            scenario of too many steps on these ranks.
        WorldError: the ranks cannot be laid out.
    """
    scenarios = select(resolve(options.scenarios), options.expression)
    if not scenarios:
        raise UsageError(f"-k {options.expression!r} matches no scenario")
    if num_ranks % options.tp:
        raise WorldError(
            f"--tp {options.tp}: found {num_ranks} ranks, allowed: a multiple of {options.tp}"
        )
    check_lengths(scenarios, num_ranks // options.tp)
    return scenarios


def report_files(options: argparse.Namespace) -> ReportFiles:
    """The files to write, checked before anything runs; a target may change the folder.

    Raises:
        UsageError: one cannot be written.
    """
    paths: dict[str, Path | None] = {k: getattr(options, k, None) for k in REPORT_KINDS}
    files = ReportFiles(**paths)
    if os.environ.get("RANK", "0") == "0" and (problems := check_writable(files)):
        raise UsageError("\n".join(problems))
    return ReportFiles(**{kind: path and path.absolute() for kind, path in paths.items()})


def run_options(
    options: argparse.Namespace, scenarios: Sequence[Scenario], device: str
) -> RunOptions:
    """The command line as every rank needs it, on the `device` that was chosen."""
    from .session import RunOptions

    return RunOptions(
        scenarios=tuple(scenarios),
        target=options.target,
        device=options.device,
        tp_size=options.tp,
        seed=options.seed,
        timeout=options.timeout,
        stop_at_first=options.stop_at_first,
        judge_each_step=options.check == "each-step" or device == "cpu",
        injections=tuple(options.inject),
        perturb=options.perturb,
        ledger=options.ledger,
        trace=options.trace is not None,
        report=options.json and str(options.json.absolute()),
    )


def reproduce_command(options: argparse.Namespace, nproc: int) -> str:
    """The command that runs one scenario again; ``{file}`` stands for it."""
    parts = ["ppharness", "run", "--nproc", str(nproc)]
    for flag, value, default in (
        ("--target", options.target, "builtin"),
        ("--device", options.device, "auto"),
        ("--tp", options.tp, 1),
        ("--seed", options.seed, 0),
        ("--perturb", options.perturb, None),
    ):
        if value != default:
            parts += [flag, shlex.quote(str(value))]
    for injection in options.inject:
        parts += ["--inject", shlex.quote(injection)]
    if not options.ledger:
        parts.append("--no-ledger")
    return " ".join([*parts, "{file}", "-k", "{scenario}"])


def show_and_write(report: RunReport, options: argparse.Namespace, files: ReportFiles) -> int:
    """The result on stdout and in the files; a file that cannot be written is an error."""
    from .report.console import render
    from .report.files import write_reports
    from .world.processes import say

    verbosity = -1 if options.quiet else options.verbose
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = shutil.get_terminal_size((100, 24)).columns
    try:
        print(render(report, verbosity=verbosity, width=width, color=color), flush=True)
    except (BrokenPipeError, OSError) as error:
        say(f"the result could not be shown: {error}")
    for text in report.missed:
        say(f"--inject {text}: it never struck")
    problems = write_reports(report, files)
    for problem in problems:
        say(problem)
    return max(report.exit_code, 2) if problems else report.exit_code
