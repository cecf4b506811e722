"""The grid of rank x step around the first fault of a scenario."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ppharness.findings import Finding, RankReport, ScenarioReport
from ppharness.report.groups import last_step, sorted_findings, step_of
from ppharness.report.text import clip, pad, printable

STEPS_BEFORE, STEPS_AFTER = 3, 2
_STEP_WIDTH = 5  # of the first column
_MIN_CELL, _MAX_CELL = 10, 24
_ALL_COLUMNS = 4  # a world of so few ranks is shown whole, even if a line gets long
_VERB = re.compile(r"^([a-z]{3})[a-z]+(?= )")  # the "prefill" of "prefill a"
_NOT_RUN, _EMPTY = ".", "-"  # the rank did not get there; a step without rows


@dataclass(frozen=True)
class Cell:
    """What one rank ran in one step."""

    text: str
    fault: bool = False


@dataclass(frozen=True)
class GridRow:
    """One step; ``arrow`` says what went wrong in it, or is empty."""

    step: int
    cells: tuple[Cell, ...]  # [num_ranks]
    arrow: str = ""


@dataclass(frozen=True)
class Grid:
    labels: tuple[str, ...]  # [num_ranks]
    rows: tuple[GridRow, ...]
    first_rank: int  # column of the first fault


def build_grid(scenario: ScenarioReport, ranks: list[RankReport]) -> Grid | None:
    """The steps around the first fault, or None where no finding has a step.

    Every rank runs every step, so a row repeats the step's cell for each rank that
    reached it; a rank that died or hung shows ``.`` from there on.
    """
    rows = {row.rank: row for row in ranks}
    placed: list[tuple[int, Finding]] = []
    for finding in sorted_findings(scenario):
        step = step_of(finding, rows.get(finding.rank))
        if step is not None and finding.rank in rows:
            placed.append((step, finding))
    if not placed:
        return None
    first_step, first = placed[0]
    ended = {row.rank: last_step(row) for row in ranks if row.outcome in ("crashed", "hung")}
    for step, finding in placed:
        if finding.kind in ("exception", "hang", "lost_rank"):
            ended[finding.rank] = step
    last = max(len(scenario.rows_per_step) - 1, first_step)
    shown = range(max(0, first_step - STEPS_BEFORE), min(last, first_step + STEPS_AFTER) + 1)
    grid_rows = []
    for step in shown:
        faults = [finding for at, finding in placed if at == step]
        cells = tuple(_cell(scenario, step, row, faults, ended.get(row.rank)) for row in ranks)
        grid_rows.append(GridRow(step, cells, _arrow(faults)))
    columns = [row.rank for row in ranks]
    labels = tuple(printable(row.label) for row in ranks)
    return Grid(labels, tuple(grid_rows), columns.index(first.rank))


def grid_lines(grid: Grid, width: int) -> list[str]:
    """The grid as text, the cell of a fault marked with ``!`` and explained at its line's end.

    Columns are shortened to fit ``width``; of a wide world only the ranks at fault
    and their neighbours are shown.
    """
    arrows = max((len(row.arrow) for row in grid.rows), default=0)
    room = max(width - _STEP_WIDTH - arrows - 6, 0)
    few = len(grid.labels) <= _ALL_COLUMNS
    columns = _columns(grid, _ALL_COLUMNS if few else max(3, room // (_MIN_CELL + 1)))
    texts = [row.cells[c].text for row in grid.rows for c in columns]
    widest = max([len(t) + 1 for t in texts] + [len(grid.labels[c]) for c in columns])
    cell = min(widest, _MAX_CELL, max(_MIN_CELL, room // len(columns) - 1))
    head = " ".join(pad(clip(grid.labels[c], cell), cell) for c in columns).rstrip()
    if len(columns) < len(grid.labels):
        head += f"   ({len(columns)} of {len(grid.labels)} ranks)"
    lines = [f"{'step':<{_STEP_WIDTH}}  {head}"]
    for row in grid.rows:
        shown = []
        for column in columns:
            text, fault = row.cells[column].text, row.cells[column].fault
            shown.append(pad(shorten_cell(text, cell - fault) + "!" * fault, cell))
        line = f"{row.step:>{_STEP_WIDTH - 2}}    {' '.join(shown)}"
        lines.append(f"{line}  <- {row.arrow}" if row.arrow else line.rstrip())
    return lines


def shorten_cell(text: str, width: int) -> str:
    """``prefill a, decode b, decode c`` -> ``prefill a +2``, or ``pre a +2``."""
    if len(text) <= width:
        return text
    parts = text.split(", ")
    brief = [_VERB.sub(r"\1", part) for part in parts]
    for items in (parts, brief):
        for kept in range(len(items), 0, -1):
            rest = f" +{len(items) - kept}" if kept < len(items) else ""
            short = ", ".join(items[:kept]) + rest
            if len(short) <= width:
                return short
    return clip(brief[0] if len(parts) == 1 else text, width)


def fault_text(finding: Finding) -> str:
    """A finding in a few words: ``PP1 slot 3: expected 1, got 7``."""
    label = printable(finding.label)
    if finding.exception:
        return f"{label} {clip(printable(finding.exception.type), 40)} in {finding.phase or '?'}"
    if finding.kind == "hang":
        return f"{label} hung" + (f" in {finding.phase}" if finding.phase else "")
    if finding.kind == "lost_rank":
        return f"{label} lost"
    place = "" if finding.slot is None else f" slot {finding.slot}"
    if not place and finding.req_id is not None:
        place = f" request {clip(printable(finding.req_id), 16)}"
    if finding.expected is None and finding.actual is None:
        return f"{label}{place}: {finding.kind.replace('_', ' ')}"
    return f"{label}{place}: expected {finding.expected}, got {finding.actual}"


def _arrow(faults: list[Finding]) -> str:
    if not faults:
        return ""
    more = f" (+{len(faults) - 1} more)" if len(faults) > 1 else ""
    return fault_text(faults[0]) + more


def _cell(
    scenario: ScenarioReport, step: int, row: RankReport, faults: list[Finding], end: int | None
) -> Cell:
    mine = [finding for finding in faults if finding.rank == row.rank]
    if end is not None and step > end and not mine:
        return Cell(_NOT_RUN)
    if step < len(scenario.rows_per_step):
        text = printable(scenario.rows_per_step[step]) or _EMPTY
    else:  # after the last step, or a scenario that told no rows
        text = str(mine[0].phase) if mine and mine[0].phase else _EMPTY
    return Cell(text, fault=bool(mine))


def _columns(grid: Grid, limit: int) -> list[int]:
    """At most ``limit`` columns: the first fault, other faults, then the nearest."""
    faulty = {c for row in grid.rows for c, cell in enumerate(row.cells) if cell.fault}
    nearest = sorted(
        range(len(grid.labels)),
        key=lambda c: (c != grid.first_rank, c not in faulty, abs(c - grid.first_rank)),
    )
    return sorted(nearest[:limit])
