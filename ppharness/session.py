"""One rank's part of a run: joins the world, runs the scenarios, gathers the results."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import triton

from . import __version__
from .blame import mark_consequences
from .findings import Finding, Outcome, RankReport, RunReport, ScenarioReport, TraceEvent
from .pipeline.calls import CallsRunner
from .pipeline.faults import Faults
from .pipeline.runner import RankRunner
from .scenario.model import Scenario
from .scenario.schedule import build_schedule
from .targets.interface import Target
from .timeline import Timeline
from .world.device import DevicePlan
from .world.layout import Layout
from .world.world import World


@dataclass(frozen=True)
class RunOptions:
    """What a run is to do, as every rank knows it."""

    scenarios: tuple[Scenario, ...]
    target: str = "builtin"
    device: str = "auto"
    tp_size: int = 1
    seed: int = 0
    timeout: float = 60.0
    stop_at_first: bool = False
    judge_each_step: bool = True
    injections: tuple[str, ...] = ()
    perturb: int | None = None
    ledger: bool = True
    trace: bool = False
    report: str | None = None  # path of the JSON, beside which other files are put


@dataclass
class RankResult:
    """What one rank has to say about one scenario."""

    steps: int
    checks: int
    seconds: float
    findings: list[Finding] = field(default_factory=list)
    num_accepted_tokens: list[int] | None = None
    complete: bool = True  # False: ended before its last step
    trace: list[TraceEvent] = field(default_factory=list)
    device_lost: bool = False  # its GPU takes no more work
    skip_reason: str | None = None  # the target cannot run this scenario

    @property
    def outcome(self) -> Outcome:
        """A rank that only saw what follows from others' faults has passed."""
        if any(f.kind == "exception" for f in self.findings):
            return "crashed"
        return "passed" if all(f.consequence for f in self.findings) else "failed"


def skip_reason(scenario: Scenario, pp_size: int) -> str | None:
    """Why a scenario does not run on a pipeline of this size, None when it does."""
    if scenario.pp_size is not None and scenario.pp_size != pp_size:
        return f"for a pipeline of {scenario.pp_size} stages, this one has {pp_size}"
    return None


def bare_report(
    options: RunOptions, plan: DevicePlan, world_size: int, local_world_size: int
) -> RunReport:
    """The head of a report when the target was never made."""
    return RunReport(
        version=__version__,
        target={"name": options.target, "version": None},
        world={
            "pp_size": world_size // options.tp_size,
            "tp_size": options.tp_size,
            "device": plan.kind,
            "backend": plan.backend,
            "ranks_per_gpu": plan.ranks_per_gpu(local_world_size),
            "triton": "interpreter" if plan.kind == "cpu" else "compiled",
        },
        environment={},
    )


def new_report(options: RunOptions, target: Target, world: World) -> RunReport:
    """The head of the result: target, world, environment."""
    layout = world.layout
    report = bare_report(options, world.plan, layout.world_size, layout.local_world_size)
    report.target = {"name": target.name, "version": target.version}
    gpu = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else None
    report.environment = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "gpu": gpu,
    }
    report.notes += [n for n in [world.plan.note] if n]
    report.notes += list(getattr(target, "warnings", ()))
    return report


def run_scenario(
    scenario: Scenario,
    target: Target,
    world: World,
    options: RunOptions,
    partial: list[Finding],
    faults: Faults,
) -> ScenarioReport:
    """One scenario on all ranks; every rank gets the same report.

    Args:
        partial: filled with this rank's findings as they come, for when it does not end.

    Raises:
        TransportError: a rank hangs or is gone.
    """
    reason = skip_reason(scenario, world.pp_size)
    if reason:
        return not_run(scenario, world.layout, options.seed, reason)
    started = time.monotonic()
    partial.clear()
    runner: CallsRunner | RankRunner
    if scenario.calls:
        runner = CallsRunner(scenario, target, world, partial, faults)
    else:
        runner = RankRunner(
            scenario, target, world, partial, faults,
            seed=options.seed, judge_each_step=options.judge_each_step,
        )  # fmt: skip
    timeline = Timeline(scenario.name, world) if options.trace else None
    runner.run()
    result = RankResult(
        steps=runner.steps_run,
        checks=runner.checks.num_checks,
        seconds=time.monotonic() - started,
        findings=list(partial),
        num_accepted_tokens=runner.final_buffer,
        device_lost=world.device_lost,
        complete=runner.complete,
        trace=timeline.finish() if timeline else [],
        skip_reason=runner.skip_reason,
    )
    results: list[RankResult] = world.gather(result)
    skipped = [r.skip_reason for r in results if r.skip_reason is not None]
    if skipped and not any(r.findings for r in results):
        return not_run(scenario, world.layout, options.seed, skipped[0])
    world.device_lost = any(r.device_lost for r in results)
    return combine(scenario, results, world, options.seed)


def combine(
    scenario: Scenario, results: Sequence[RankResult], world: World, seed: int
) -> ScenarioReport:
    """All ranks' results as one report."""
    findings = [f for r in results for f in r.findings]
    findings.sort(key=lambda f: (f.step if f.step is not None else -1, f.kind != "exception"))
    mark_consequences(findings, tp_size=world.tp_size)
    outcomes = {r.outcome for r in results}
    report = ScenarioReport(
        name=scenario.name,
        file=scenario.file,
        outcome="crashed" if "crashed" in outcomes else "failed" if findings else "passed",
        seed=seed,
        steps=max(r.steps for r in results),
        checks=sum(r.checks for r in results),
        seconds=round(max(r.seconds for r in results), 4),
        source=scenario.source,
        findings=findings,
    )
    for rank, result in enumerate(results):
        report.ranks.append(
            RankReport(
                rank=rank,
                label=world.layout.label(rank),
                outcome=result.outcome,
                num_accepted_tokens=result.num_accepted_tokens,
            )
        )
    report.trace = [event for r in results for event in r.trace]
    if not findings and not all(r.complete for r in results):
        interrupted = world.interrupted
        report.outcome = "skipped" if interrupted else "failed"
        report.reason = "interrupted" if interrupted else "ended early, and no rank said why"
    if findings:
        report.rows_per_step = rows_per_step(scenario, world.pp_size)[: report.steps]
    return report


def rows_per_step(scenario: Scenario, pp_size: int) -> list[str]:
    """What each step runs, for the grid in a report."""
    if scenario.calls:
        return [f"call {number}" for number in range(len(scenario.calls))]
    return [step.text for step in build_schedule(scenario, pp_size)]


def not_run(scenario: Scenario, layout: Layout, seed: int, reason: str) -> ScenarioReport:
    """A scenario that was skipped, with a row for every rank all the same."""
    return ScenarioReport(
        name=scenario.name,
        file=scenario.file,
        outcome="skipped",
        reason=reason,
        seed=seed,
        source=scenario.source,
        ranks=[
            RankReport(rank=rank, label=layout.label(rank), outcome="skipped")
            for rank in range(layout.world_size)
        ],
    )
