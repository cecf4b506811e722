"""What goes to stdout: the result as text, for a terminal or a CI log."""

from __future__ import annotations

from collections import Counter

from ppharness.findings import RunReport, ScenarioReport
from ppharness.report.grid import build_grid, grid_lines
from ppharness.report.groups import MAX_GROUPS, group_findings, left_out_text
from ppharness.report.summary import (
    MARKS,
    faulty,
    outcome_text,
    positions_text,
    rank_marks,
    reproduce_text,
    totals_text,
    world_text,
)
from ppharness.report.text import clip, message_lines, pad, printable

_WIDE_RANKS = 12  # more than these get one letter each
_LETTERS = {"ok": ".", "FAIL": "F", "CRASH": "C", "HUNG": "H", "LOST": "L", "skip": "s", "?": "?"}
_COLORS = {"ok": "32", "passed": "32", "skip": "33", "skipped": "33", "error": "31"}
_RED, _BOLD, _DIM = "31", "1", "2"


def render(report: RunReport, *, verbosity: int, width: int, color: bool) -> str:
    """The report as lines of text, ending in a newline.

    ``verbosity`` -1 keeps the failures and the last line, 1 adds steps, checks and
    seconds of every scenario.  Without ``color`` the text is plain ASCII.
    """
    paint = _Paint(color)
    width = max(width, 60)
    lines: list[str] = []
    if verbosity >= 0:
        lines.append(world_text(report))
        lines += [f"note: {line}" for note in report.notes for line in message_lines(note)]
        if report.scenarios:
            lines += ["", *_table(report, verbosity, width, paint)]
        lines.append("")
    for scenario in faulty(report):
        lines += [*_section(report, scenario, width, paint), ""]
    if report.error:
        lines += [f"{paint('error', _RED)}: {line}" for line in message_lines(report.error)]
    outcome = outcome_text(report)
    lines.append(f"{totals_text(report)}: {paint(outcome, _COLORS.get(report.outcome, _RED))}")
    text = "\n".join(lines) + "\n"
    if color:
        return text
    return text.encode("ascii", "backslashreplace").decode("ascii")


class _Paint:
    """ANSI colors, or none."""

    def __init__(self, color: bool) -> None:
        self._color = color

    def __call__(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color and text.strip() else text


def _table(report: RunReport, verbosity: int, width: int, paint: _Paint) -> list[str]:
    """Scenario x rank, one line a scenario, with a mark or a letter for each rank."""
    names = [clip(printable(s.name), max(24, width // 2)) for s in report.scenarios]
    first = max(len("scenario"), *(len(name) for name in names))
    labels = [printable(row.label) for row in report.ranks_of(report.scenarios[0])]
    cell = max(5, *(len(label) for label in labels))
    wide = len(labels) > _WIDE_RANKS or first + len(labels) * (cell + 1) + 1 > width
    if wide:
        head = f"{labels[0]} to {labels[-1]}"
        legend = ", ".join(f"{letter} {mark}" for mark, letter in _LETTERS.items() if mark != "?")
    else:
        head = " ".join(pad(label, cell) for label in labels)
    letters = len(labels) + (len(labels) - 1) // 8 <= width - first - 2
    column = max(len(head), len(labels) + (len(labels) - 1) // 8 if wide and letters else 0)
    extra = f"  {'steps':>6} {'checks':>8} {'seconds':>8}" if verbosity > 0 else ""
    title = f"{pad('scenario', first)}  {pad(head, column)}{extra}".rstrip()
    lines = [paint(title, _BOLD)]
    for name, scenario in zip(names, report.scenarios, strict=True):
        marks = rank_marks(scenario, report.ranks_of(scenario))
        if not wide:
            row = " ".join(_padded(mark, cell, _COLORS.get(mark, _RED), paint) for mark in marks)
        elif letters:
            row = _letters(marks, column, paint)
        else:
            row = pad(_counts(marks, labels), column)
        line = f"{pad(name, first)}  {row}"
        if verbosity > 0:
            line += f"  {scenario.steps:>6} {scenario.checks:>8} {scenario.seconds:>8.2f}"
        if scenario.outcome == "skipped" and scenario.reason:
            line += f"  {clip(printable(scenario.reason), max(40, width - first - column - 4))}"
        lines.append(line.rstrip())
    return [*lines, paint(f"({legend})", _DIM)] if wide and letters else lines


def _letters(marks: list[str], column: int, paint: _Paint) -> str:
    """One letter a rank, in groups of eight."""
    shown = "".join(_LETTERS.get(mark, "?") for mark in marks)
    text = " ".join(shown[i : i + 8] for i in range(0, len(shown), 8))
    return _padded(text, column, _COLORS["ok"] if set(marks) <= {"ok"} else _RED, paint)


def _padded(text: str, width: int, code: str, paint: _Paint) -> str:
    """Colored text, then blanks without color."""
    return paint(text, code) + " " * (len(pad(text, width)) - len(text))


def _counts(marks: list[str], labels: list[str]) -> str:
    """``126 ok, 2 FAIL (PP3, PP4)`` for more ranks than a line holds."""
    parts = []
    for mark, number in Counter(marks).items():
        ranks = [label for label, its in zip(labels, marks, strict=False) if its == mark]
        few = f" ({', '.join(ranks)})" if mark not in ("ok", "skip") and number <= 4 else ""
        parts.append(f"{number} {mark}{few}")
    return ", ".join(parts)


def _section(report: RunReport, scenario: ScenarioReport, width: int, paint: _Paint) -> list[str]:
    """One scenario that did not pass: findings, grid, and how to run it again."""
    mark = MARKS.get(scenario.outcome, "?")
    about = [printable(scenario.file)] if scenario.file else []
    about.append(f"seed {scenario.seed}")
    lines = [
        f"{paint(mark, _COLORS.get(mark, _RED))} {paint(printable(scenario.name), _BOLD)}"
        f" ({', '.join(about)})"
    ]
    if scenario.source:
        lines.append(f"  source: {clip(printable(scenario.source), 200)}")
    if scenario.reason:
        lines += [f"  {line}" for line in message_lines(scenario.reason)]
    groups = group_findings(scenario)
    for group in groups[:MAX_GROUPS]:
        lines.append(f"  {paint(group.headline(), _RED)}")
        lines += [f"      {line}".rstrip() for line in group.details()]
    if left_out := left_out_text(scenario, groups):
        lines.append(f"  {left_out}")
    seen = positions_text(scenario)
    if seen:
        lines.append(f"  last seen: {seen}")
    grid = build_grid(scenario, report.ranks_of(scenario))
    if grid:
        lines.append("")
        for line in grid_lines(grid, width - 2):
            lines.append(f"  {paint(line, _RED) if '  <- ' in line else line}")
    command = reproduce_text(report, scenario)
    if command:
        lines += ["", f"  reproduce: {command}"]
    return lines
