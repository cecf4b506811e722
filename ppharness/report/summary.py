"""The lines that every form of the report has: world, marks, totals, reproduce."""

from __future__ import annotations

import shlex
from collections import Counter

from ppharness.findings import RankReport, RunReport, ScenarioReport
from ppharness.report.groups import join_labels
from ppharness.report.text import printable

MARKS = {"passed": "ok", "failed": "FAIL", "crashed": "CRASH", "hung": "HUNG", "skipped": "skip"}
LOST = "LOST"
_ORDER = ("passed", "failed", "crashed", "hung", "skipped")


def target_text(report: RunReport) -> str:
    """``builtin`` or ``vllm 0.28.0``."""
    name, version = report.target.get("name") or "?", report.target.get("version")
    return printable(f"{name} {version}" if version else name)


def world_text(report: RunReport) -> str:
    """``4 ranks (pp 4, tp 1), cpu, gloo, triton interpreted, target builtin``."""
    world, ranks = report.world, report.num_ranks
    parts = [
        f"{ranks} rank{'s' * (ranks != 1)} (pp {world.get('pp_size', 1)}, "
        f"tp {world.get('tp_size', 1)})"
    ]
    device = str(world.get("device") or "?")
    per_gpu = world.get("ranks_per_gpu") or 0
    parts.append(f"{device} ({per_gpu} ranks per GPU)" if per_gpu > 1 else device)
    if world.get("backend"):
        parts.append(str(world["backend"]))
    if world.get("triton"):
        parts.append("triton " + str(world["triton"]).replace("interpreter", "interpreted"))
    return printable(", ".join(parts)) + f", target {target_text(report)}"


def environment_text(report: RunReport) -> str:
    """``python 3.12.3, torch 2.11.0``: what is known, in the report's order."""
    known = [f"{key} {value}" for key, value in report.environment.items() if value]
    return printable(", ".join(known))


def rank_marks(scenario: ScenarioReport, ranks: list[RankReport]) -> list[str]:
    """A mark for each rank: ok, FAIL, CRASH, HUNG, LOST or skip."""
    lost = {f.rank for f in scenario.findings if f.kind == "lost_rank"}
    return [LOST if row.rank in lost else MARKS.get(row.outcome, "?") for row in ranks]


def totals_text(report: RunReport) -> str:
    """``25 scenarios: 23 passed, 2 failed; 12480 checks in 3.2 s``."""
    counts = Counter(str(s.outcome) for s in report.scenarios)
    number = len(report.scenarios)
    how = ", ".join(f"{counts[o]} {o}" for o in _ORDER if counts[o])
    checks = sum(s.checks for s in report.scenarios)
    seconds = sum(s.seconds for s in report.scenarios)
    return (
        f"{number} scenario{'s' * (number != 1)}{': ' + how if how else ''}; "
        f"{checks} check{'s' * (checks != 1)} in {seconds:.1f} s"
    )


def outcome_text(report: RunReport) -> str:
    """The outcome of the run, and that it was cut short where it was."""
    return f"{report.outcome} (interrupted)" if report.interrupted else report.outcome


def faulty(report: RunReport) -> list[ScenarioReport]:
    """The scenarios that neither passed nor were skipped, and those with findings."""
    return [s for s in report.scenarios if s.findings or s.outcome not in ("passed", "skipped")]


def positions_text(scenario: ScenarioReport) -> str:
    """Where ranks were last seen, for a scenario that hung or lost one; empty otherwise."""
    if scenario.outcome != "hung" and all(f.kind != "lost_rank" for f in scenario.findings):
        return ""
    seen: dict[str, list[str]] = {}
    for row in scenario.ranks:
        if row.last_position:
            seen.setdefault(printable(row.last_position), []).append(printable(row.label))
    places = [f"{join_labels(labels)} at {where}" for where, labels in seen.items()]
    return "; ".join(places[:8] + ["..."] * (len(places) > 8))


def reproduce_text(report: RunReport, scenario: ScenarioReport) -> str | None:
    """The command that runs one scenario again, as a shell takes it."""
    if not report.reproduce:
        return None
    name = shlex.quote(printable(scenario.name))
    file = shlex.quote(printable(scenario.file)) if scenario.file else name
    pieces = report.reproduce.split("{scenario}")
    return printable(name.join(piece.replace("{file}", file) for piece in pieces))
