"""Findings put in order and grouped: the same fault on several ranks is shown once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ppharness.findings import PHASES, Finding, Frame, RankReport, ScenarioReport
from ppharness.report.text import clip, message_lines, printable

MAX_GROUPS = 10  # shown of one scenario
MAX_FRAMES = 4  # innermost
_MAX_LABELS = 8
_KINDS = {"stray_write": "stray write", "lost_rank": "lost rank"}


@dataclass(frozen=True)
class FindingGroup:
    """One or more findings that differ in nothing but the rank (and perhaps the step)."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(printable(f.label) for f in self.findings))

    @property
    def kind(self) -> str:
        return _KINDS.get(self.first.kind, self.first.kind)

    def place(self) -> str:
        """``PP0, PP1, step 2, postprocess_state``."""
        parts = [join_labels(self.labels)]
        steps = sorted({f.step for f in self.findings if f.step is not None})
        if len(steps) == 1:
            parts.append(f"step {steps[0]}")
        elif steps:
            parts.append(f"steps {steps[0]} to {steps[-1]}")
        if self.first.phase:
            parts.append(str(self.first.phase))
        return ", ".join(parts)

    def headline(self) -> str:
        """Kind, place and values on one line."""
        values = value_text(self.first)
        return f"{self.kind} on {self.place()}" + (f": {values}" if values else "")

    def details(self) -> list[str]:
        """Message, innermost frames and stack, a printable line each."""
        finding, lines = self.first, []
        if finding.exception:
            shown = message_lines(finding.exception.message)
            head = printable(finding.exception.type)
            lines += [f"{head}: {shown[0]}" if shown else head, *shown[1:]]
            if finding.message and finding.message.strip() not in _said(finding):
                lines += message_lines(finding.message)
            lines += frame_lines(finding.exception.frames)
        else:
            lines += message_lines(finding.message)
        if finding.stack:
            lines.append("stack:")
            stack = finding.stack.rstrip().splitlines()
            if len(stack) > 12:
                lines.append(f"  ... {len(stack) - 12} outer lines")
            lines += ["  " + clip(printable(line), 200) for line in stack[-12:]]
        return lines


def group_findings(scenario: ScenarioReport) -> list[FindingGroup]:
    """Groups in the order of their earliest fault; causes come before hangs."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in sorted_findings(scenario):
        groups.setdefault(_key(finding), []).append(finding)
    return [FindingGroup(tuple(found)) for found in groups.values()]


def left_out_text(scenario: ScenarioReport, groups: list[FindingGroup]) -> str:
    """What a report does not show of a scenario; "" where it shows all."""
    parts = []
    if more := sum(len(group.findings) for group in groups[MAX_GROUPS:]):
        parts.append(f"{more} more finding{'s' * (more != 1)}")
    if after := [f for f in scenario.findings if f.consequence]:
        labels = join_labels(list(dict.fromkeys(printable(f.label) for f in after)))
        verb = "follows" if len(after) == 1 else "follow"
        parts.append(f"{len(after)} that {verb} from what is shown, on {labels}")
    return f"and {', and '.join(parts)}" if parts else ""


def sorted_findings(scenario: ScenarioReport) -> list[Finding]:
    """By step, phase and rank, without consequences; a hang, which mostly is one, last."""
    rows = {row.rank: row for row in scenario.ranks}

    def order(finding: Finding) -> tuple[bool, float, int, int]:
        step = step_of(finding, rows.get(finding.rank))
        phase = PHASES.index(finding.phase) if finding.phase in PHASES else len(PHASES)
        at = float("inf") if step is None else step
        return finding.kind == "hang", at, phase, finding.rank

    return sorted((f for f in scenario.findings if not f.consequence), key=order)


def step_of(finding: Finding, row: RankReport | None) -> int | None:
    """The step of a finding; for one without, the step where its rank was last seen."""
    return last_step(row) if finding.step is None else finding.step


def last_step(row: RankReport | None) -> int | None:
    """The step in ``row.last_position`` ("step 7, relay")."""
    found = re.search(r"\bstep (\d{1,9})\b", (row and row.last_position) or "")
    return int(found.group(1)) if found else None


def value_text(finding: Finding) -> str:
    """``request a, slot 2, expected 3, got 1``, as far as the finding says."""
    parts = []
    if finding.req_id is not None:
        parts.append(f"request {clip(printable(finding.req_id), 60)}")
    if finding.slot is not None:
        parts.append(f"slot {finding.slot}")
    if finding.expected is not None:
        parts.append(f"expected {finding.expected}")
    if finding.actual is not None:
        parts.append(f"got {finding.actual}")
    return ", ".join(parts)


def frame_lines(frames: list[Frame], limit: int = MAX_FRAMES) -> list[str]:
    """The innermost frames as in a traceback, the innermost last."""
    lines = [f"  ... {len(frames) - limit} outer frames"] if len(frames) > limit else []
    for frame in frames[-limit:]:
        lines.append(f"  {printable(frame.file)}:{frame.line} in {printable(frame.function)}")
    return lines


def _said(finding: Finding) -> str:
    """What the lines of an exception say already, so that it is not said twice."""
    assert finding.exception is not None
    return f"{finding.exception.type}: {finding.exception.message}"


def _key(finding: Finding) -> tuple[object, ...]:
    message = finding.message.replace(finding.label, "{rank}") if finding.label else finding.message
    if finding.exception:
        inner = finding.exception.frames[-1:]
        where = [(f.file, f.line, f.function) for f in inner]
        said = (finding.exception.type, finding.exception.message, *where)
        return finding.kind, finding.phase, message, *said
    values = (finding.req_id, finding.slot, finding.expected, finding.actual)
    return finding.kind, finding.step, finding.phase, message, finding.stack, *values


def join_labels(labels: list[str]) -> str:
    """``PP0, PP1``; of more than a few, the first ones and the last."""
    if len(labels) <= _MAX_LABELS:
        return ", ".join(labels)
    return f"{', '.join(labels[:3])}, ..., {labels[-1]} ({len(labels)} ranks)"
