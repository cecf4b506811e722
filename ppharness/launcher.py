"""``ppharness run``: launches worlds until every scenario has run, then reports."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .findings import (
    NOT_RUN,
    PHASES,
    Finding,
    RankReport,
    RunReport,
    ScenarioReport,
)
from .injection import parse_injection
from .journal import Journal, hand_over
from .report.files import ReportFiles
from .report.progress import RunProgress
from .request import reproduce_command, run_options, show_and_write
from .scenario.model import Scenario
from .world.device import DevicePlan, plan_device
from .world.errors import WorldError
from .world.processes import die_with_parent

if TYPE_CHECKING:
    from .session import RunOptions
    from .world.board import Position
    from .world.launch import WorldEnd


def launch(options: argparse.Namespace, scenarios: Sequence[Scenario], files: ReportFiles) -> int:
    """Runs all scenarios, in a fresh world after each hang or loss; returns the exit code."""
    if options.nproc % options.tp:
        raise WorldError(
            f"--tp {options.tp}: found {options.nproc} ranks, allowed: a multiple of {options.tp}"
        )
    plan = plan_device(options.device)
    from .kernels.num_accepted import warm_up
    from .rank import RankProcess  # noqa: F401  torch and triton, before the fork
    from .targets.loading import load_target

    run: RunOptions = run_options(options, scenarios, plan.kind)
    for text in run.injections:
        parse_injection(text, world_size=options.nproc, tp_size=options.tp)
    if plan.kind == "cpu":
        warm_up()
        import numpy.random  # noqa: F401  loaded when first used, so better before the fork

        load_target(run.target)  # bad ones are refused here; what it imports is forked
    report: RunReport | None = None
    remaining = list(scenarios)
    interrupted = False
    for number in range(len(scenarios) + 1):
        part, interrupted = _one_world(run, plan, options, remaining, str(number))
        if isinstance(part, int):  # the ranks refused to run anything, and said why
            return part
        if report is None:
            report = part
        else:
            report.go_on(part)
        run = replace(run, injections=tuple(report.missed))  # each strikes once
        done = {s.name for s in part.scenarios if not (s.reason or "").startswith(NOT_RUN)}
        left = [s for s in remaining if s.name not in done]
        stopped = options.stop_at_first and report.exit_code != 0
        if not left or interrupted or stopped or len(left) == len(remaining):
            break
        report.scenarios = [
            s for s in report.scenarios if s.name in done or s.name not in _names(left)
        ]
        remaining = left
    assert report is not None
    report.interrupted = report.interrupted or interrupted
    report.reproduce = reproduce_command(options, options.nproc)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what has run is reported in any case
    return show_and_write(report, options, files)


def _names(scenarios: Sequence[Scenario]) -> set[str]:
    return {s.name for s in scenarios}


def _one_world(
    run: RunOptions,
    plan: DevicePlan,
    options: argparse.Namespace,
    scenarios: list[Scenario],
    number: str,
) -> tuple[RunReport | int, bool]:
    import torch

    from .world.launch import launch_world

    run = replace(run, scenarios=tuple(scenarios))
    forked = not torch.cuda.is_initialized()
    with Journal() as journal:
        end = launch_world(
            run_rank,
            (run, plan, options.quiet),
            nproc=options.nproc,
            world_id=number,
            start_method="fork" if forked else "spawn",
            extra_env=journal.environment,
            keys=[f"fired/{text}" for text in run.injections],
        )
        report, so_far = journal.result(), journal.so_far()
    if report is not None:
        _name_signals(report, end.exit_codes)
        return report, end.interrupted
    if set(end.exit_codes.values()) <= {2}:
        return 2, end.interrupted
    return _nobody_reported(run, plan, options, scenarios, end, so_far), end.interrupted


def run_rank(run: RunOptions, plan: DevicePlan, quiet: bool) -> None:
    """The entry of a forked or spawned rank."""
    die_with_parent()
    if sys.stdin is not None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    from .rank import RankProcess

    RankProcess(run, plan, hand_over, RunProgress(quiet=quiet)).main()


def _lost_rank(rank: int, label: str, code: int, seen: Position | None) -> Finding:
    place = f"last seen at {seen.text}" if seen else "it was never seen"
    return Finding(
        kind="lost_rank",
        rank=rank,
        label=label,
        step=seen.step if seen else None,
        phase=seen.phase if seen and seen.phase in PHASES else None,
        message=f"{label} is gone; {place}; {_how(code)}",
    )


def _name_signals(report: RunReport, exit_codes: dict[int, int]) -> None:
    """The launcher knows how a lost rank ended."""
    for scenario in report.scenarios:
        for finding in scenario.findings:
            code = exit_codes.get(finding.rank)
            if finding.kind == "lost_rank" and code is not None:
                finding.message += f"; {_how(code)}"


def _how(code: int) -> str:
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"it left with exit code {code}"


def _nobody_reported(
    run: RunOptions,
    plan: DevicePlan,
    options: argparse.Namespace,
    scenarios: list[Scenario],
    end: WorldEnd,
    so_far: RunReport | None,
) -> RunReport:
    """No rank was left to say anything: what the exit codes tell."""
    from .session import bare_report, not_run, rows_per_step
    from .world.layout import Layout

    layout = Layout(0, options.nproc, 0, options.nproc, options.tp)
    label = layout.label
    report = so_far or bare_report(run, plan, options.nproc, options.nproc)
    done = len(report.scenarios)
    report.injections = {text: int(f"fired/{text}" in end.found) for text in run.injections}
    if done == len(scenarios):  # lost after the last one: it is put down to that one
        done -= 1
        report.scenarios.pop()
    first, rest = scenarios[done], scenarios[done + 1 :]
    seen = {r: p.text if p else "" for r, p in end.last_seen.items()}
    lost = ScenarioReport(
        name=first.name,
        file=first.file,
        outcome="hung",
        seed=run.seed,
        source=first.source,
        rows_per_step=rows_per_step(first, options.nproc // options.tp),
        ranks=[
            RankReport(r, label(r), "hung", last_position=seen[r]) for r in range(options.nproc)
        ],
        findings=[
            _lost_rank(rank, label(rank), code, end.last_seen.get(rank))
            for rank, code in sorted(end.exit_codes.items())
        ],
    )
    report.scenarios += [lost] + [not_run(s, layout, run.seed, NOT_RUN) for s in rest]
    return report
