"""The result as JUnit XML, as CI systems read it.

A failed scenario is a ``failure``; one that crashed or hung is an ``error``.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from ppharness.findings import RunReport, ScenarioReport
from ppharness.report.grid import build_grid, grid_lines
from ppharness.report.groups import MAX_GROUPS, group_findings, left_out_text
from ppharness.report.summary import (
    outcome_text,
    positions_text,
    reproduce_text,
    target_text,
    totals_text,
)
from ppharness.report.text import clip, message_lines, printable, xml_safe

_TAGS = {"failed": "failure", "crashed": "error", "hung": "error", "skipped": "skipped"}


def render_junit(report: RunReport) -> str:
    """One ``testsuite`` with a ``testcase`` for every scenario.

    A run that was interrupted or had an error gets one more case that says so:
    without it a run of nothing would look like a pass.
    """
    root = ET.Element("testsuites", name="ppharness")
    suite = ET.SubElement(root, "testsuite", name="ppharness")
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report):
        ET.SubElement(properties, "property", name=xml_safe(name), value=xml_safe(value))
    for scenario in report.scenarios:
        _case(suite, report, scenario)
    if report.error or report.interrupted:
        case = ET.SubElement(suite, "testcase", classname="ppharness", name="run", time="0.000")
        what = printable(report.error or "interrupted")
        said = ET.SubElement(case, "error", type="error", message=xml_safe(clip(what, 500)))
        said.text = xml_safe(report.error or "interrupted")
    seconds = f"{sum(s.seconds for s in report.scenarios):.3f}"
    for element in (root, suite):
        element.set("tests", str(len(suite.findall("testcase"))))
        element.set("failures", str(len(suite.findall("testcase/failure"))))
        element.set("errors", str(len(suite.findall("testcase/error"))))
        element.set("skipped", str(len(suite.findall("testcase/skipped"))))
        element.set("time", seconds)
    said = ET.SubElement(suite, "system-out")
    said.text = f"{totals_text(report)}: {outcome_text(report)}"
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _properties(report: RunReport) -> list[tuple[str, str]]:
    pairs: list[tuple[str, object]] = [("ppharness", report.version)]
    pairs.append(("target", target_text(report)))
    pairs += [(f"world.{key}", value) for key, value in report.world.items()]
    pairs += [(f"environment.{key}", value) for key, value in report.environment.items()]
    pairs += [("note", note) for note in report.notes]
    return [(printable(name), printable("" if value is None else value)) for name, value in pairs]


def _case(suite: ET.Element, report: RunReport, scenario: ScenarioReport) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        # Readers take a dot for a package.
        classname=xml_safe("ppharness." + re.sub(r"[.\s]+", "_", target_text(report))),
        name=xml_safe(printable(scenario.name)),
        time=f"{scenario.seconds:.3f}",
    )
    if scenario.file:
        case.set("file", xml_safe(printable(scenario.file)))
    tag = _TAGS.get(scenario.outcome)
    if tag is None:
        return
    groups = group_findings(scenario)
    said = [groups[0].headline(), *groups[0].details()[:1]] if groups else []
    first = ": ".join(said) or scenario.reason or scenario.outcome
    message = xml_safe(clip(printable(first), 500))
    if tag == "skipped":
        ET.SubElement(case, tag, message=xml_safe(clip(printable(scenario.reason or ""), 500)))
        return
    kind = groups[0].first.exception.type if groups and groups[0].first.exception else None
    element = ET.SubElement(case, tag, type=xml_safe(printable(kind or _first_kind(scenario))))
    element.set("message", message)
    element.text = xml_safe("\n".join(_body(report, scenario)))


def _first_kind(scenario: ScenarioReport) -> str:
    """The kind of the first fault, or the outcome where there is no finding."""
    groups = group_findings(scenario)
    return groups[0].first.kind if groups else scenario.outcome


def _body(report: RunReport, scenario: ScenarioReport) -> list[str]:
    lines = message_lines(scenario.reason) if scenario.reason else []
    groups = group_findings(scenario)
    for group in groups[:MAX_GROUPS]:
        lines += [group.headline(), *(f"    {line}" for line in group.details())]
    if left_out := left_out_text(scenario, groups):
        lines.append(left_out)
    seen = positions_text(scenario)
    if seen:
        lines.append(f"last seen: {seen}")
    grid = build_grid(scenario, report.ranks_of(scenario))
    if grid:
        lines += ["", *grid_lines(grid, 120)]
    command = reproduce_text(report, scenario)
    return [*lines, "", f"reproduce: {command}"] if command else lines
