"""The result as a block to paste into a GitHub issue.

What a target or a file said stands in code spans and code blocks only, whose
fences it cannot end: there GitHub reads no mention, no reference and no HTML.
"""

from __future__ import annotations

from ppharness.findings import RunReport, ScenarioReport
from ppharness.report.grid import build_grid, grid_lines
from ppharness.report.groups import MAX_GROUPS, group_findings, left_out_text
from ppharness.report.summary import (
    faulty,
    outcome_text,
    positions_text,
    rank_marks,
    reproduce_text,
    target_text,
    totals_text,
    world_text,
)
from ppharness.report.text import clip, code_fence, code_span, message_lines, printable

MAX_CHARS = 60_000  # GitHub takes 65536 in one issue
_TABLE_RANKS = 12
_GRID_WIDTH = 100


def render_markdown(report: RunReport) -> str:
    """Environment, table, and for each scenario that did not pass its findings and grid.

    Sections that would make the text too long for an issue are left out and counted.
    """
    lines = [
        f"### ppharness {code_span(report.version)}: {outcome_text(report)}",
        "",
        f"{totals_text(report)}",
        "",
        *_environment(report),
        "",
    ]
    if report.error:
        lines += [*code_fence([f"error: {line}" for line in message_lines(report.error)]), ""]
    if report.scenarios:
        lines += [*_table(report), ""]
    text = "\n".join(lines)
    sections = ["\n".join(_section(report, scenario)) for scenario in faulty(report)]
    for number, section in enumerate(sections):
        if len(text) + len(section) > MAX_CHARS:
            rest = len(sections) - number
            return f"{text}\n{rest} more scenario{'s' * (rest != 1)} that did not pass\n"
        text += f"\n{section}"
    return text


def _environment(report: RunReport) -> list[str]:
    rows = [("world", world_text(report)), ("target", target_text(report))]
    rows += [(printable(k), v) for k, v in report.environment.items() if v is not None]
    rows += [("note", clip(note, 400)) for note in report.notes[:10]]
    return [f"- {code_span(name)}: {code_span(value)}" for name, value in rows]


def _table(report: RunReport, limit: int = 100) -> list[str]:
    """Scenario x rank; of a wide world the ranks that passed are counted."""
    labels = [row.label for row in report.ranks_of(report.scenarios[0])]
    wide = len(labels) > _TABLE_RANKS
    heads = ["ranks"] if wide else [code_span(label) for label in labels]
    lines = [
        "| " + " | ".join(["scenario", "outcome", *heads]) + " |",
        "|" + " --- |" * (2 + len(heads)),
    ]
    # Those that did not pass first, where not all can be shown.
    order = sorted(report.scenarios, key=lambda s: s.outcome == "passed")
    shown = report.scenarios if len(order) <= limit else order[:limit]
    for scenario in shown:
        rows = report.ranks_of(scenario)
        marks = rank_marks(scenario, rows)
        if wide:
            bad = [
                f"{m} {code_span(r.label)}"
                for m, r in zip(marks, rows, strict=True)
                if m not in ("ok", "skip")
            ]
            more = f", {len(bad) - 8} more" if len(bad) > 8 else ""
            marks = [", ".join([f"{sum(m in ('ok', 'skip') for m in marks)} ok", *bad[:8]]) + more]
        name = code_span(clip(printable(scenario.name), 80))
        lines.append("| " + " | ".join([name, scenario.outcome, *marks]) + " |")
    if len(shown) < len(order):
        lines += ["", f"and {len(order) - len(shown)} more scenarios"]
    return lines


def _section(report: RunReport, scenario: ScenarioReport) -> list[str]:
    lines = [f"#### {scenario.outcome}: {code_span(clip(printable(scenario.name), 80))}", ""]
    if scenario.file:
        lines.append(f"- file: {code_span(clip(printable(scenario.file), 200))}")
    lines.append(f"- seed: `{scenario.seed}`")
    if scenario.source:
        lines.append(f"- source: {code_span(clip(printable(scenario.source), 200))}")
    body = message_lines(scenario.reason) if scenario.reason else []
    groups = group_findings(scenario)
    for group in groups[:MAX_GROUPS]:
        body += [group.headline(), *(f"    {line}" for line in group.details())]
    if left_out := left_out_text(scenario, groups):
        body.append(left_out)
    seen = positions_text(scenario)
    if seen:
        body.append(f"last seen: {seen}")
    if body:
        lines += ["", *code_fence(body)]
    grid = build_grid(scenario, report.ranks_of(scenario))
    if grid:
        lines += ["", *code_fence(grid_lines(grid, _GRID_WIDTH))]
    command = reproduce_text(report, scenario)
    if command:
        lines += ["", "To reproduce:", "", *code_fence([command], "sh")]
    return [*lines, ""]
