"""The result as one self-contained page: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, StrictUndefined

from ppharness.findings import RunReport, ScenarioReport
from ppharness.report.grid import build_grid, shorten_cell
from ppharness.report.groups import (
    MAX_GROUPS,
    FindingGroup,
    frame_lines,
    group_findings,
    left_out_text,
)
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
from ppharness.report.text import clip, message_lines, printable

TEMPLATE = "page.html.j2"
__all__ = ["TEMPLATE", "render_html"]
_MAX_CELL = 16  # the whole text shows under the pointer


def render_html(report: RunReport) -> str:
    """The page as text.  Everything is escaped by the template."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files("ppharness.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    labels = [row.label for row in report.ranks_of(report.scenarios[0])] if report.scenarios else []
    at_fault = {id(s): f"s{number}" for number, s in enumerate(faulty(report))}
    return (
        environment.from_string(source).render(
            version=printable(report.version),
            outcome=report.outcome,
            outcome_text=outcome_text(report),
            exit_code=report.exit_code,
            totals=totals_text(report),
            world=world_text(report),
            environment=_environment(report),
            notes=[printable(note) for note in report.notes],
            error=message_lines(report.error) if report.error else [],
            labels=[printable(label) for label in labels],
            rows=[_row(report, s, at_fault.get(id(s))) for s in report.scenarios],
            sections=[_section(report, s, at_fault[id(s)]) for s in faulty(report)],
        )
        + "\n"
    )


def _environment(report: RunReport) -> list[tuple[str, str]]:
    known = [("target", target_text(report))]
    known += [(printable(k), printable(v)) for k, v in report.environment.items() if v is not None]
    return known


def _row(report: RunReport, scenario: ScenarioReport, anchor: str | None) -> dict[str, Any]:
    ranks = report.ranks_of(scenario)
    return {
        "name": printable(scenario.name),
        "anchor": anchor,
        "outcome": scenario.outcome,
        "reason": printable(scenario.reason) if scenario.reason else "",
        "marks": rank_marks(scenario, ranks),
        "steps": scenario.steps,
        "checks": scenario.checks,
        "seconds": f"{scenario.seconds:.2f}",
    }


def _section(report: RunReport, scenario: ScenarioReport, anchor: str) -> dict[str, Any]:
    groups = group_findings(scenario)
    source = scenario.source or ""
    return {
        "anchor": anchor,
        "name": printable(scenario.name),
        "outcome": scenario.outcome,
        "file": printable(scenario.file) if scenario.file else "",
        "seed": scenario.seed,
        "source": printable(source),
        "link": source if _is_web(source) else "",
        "reason": message_lines(scenario.reason) if scenario.reason else [],
        "groups": [_group(group) for group in groups[:MAX_GROUPS]],
        "left_out": left_out_text(scenario, groups),
        "positions": positions_text(scenario),
        "grid": _grid(report, scenario),
        "reproduce": reproduce_text(report, scenario),
    }


def _group(group: FindingGroup) -> dict[str, Any]:
    """All frames of an exception stand in the page, folded away."""
    frames = group.first.exception.frames if group.first.exception else []
    return {
        "headline": group.headline(),
        "details": group.details(),
        "frames": [line.strip() for line in frame_lines(frames, limit=200)],
    }


def _grid(report: RunReport, scenario: ScenarioReport) -> dict[str, Any] | None:
    grid = build_grid(scenario, report.ranks_of(scenario))
    if grid is None:
        return None
    rows = [
        {
            "step": row.step,
            "arrow": row.arrow,
            "cells": [
                {
                    "text": shorten_cell(c.text, _MAX_CELL),
                    "full": clip(c.text, 400),
                    "fault": c.fault,
                }
                for c in row.cells
            ],
        }
        for row in grid.rows
    ]
    return {"labels": grid.labels, "rows": rows}


def _is_web(link: str) -> bool:
    """Whether a link is one to follow: ``javascript:`` and hidden characters are not."""
    if link != printable(link) or " " in link:
        return False
    try:
        parts = urlsplit(link)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)
