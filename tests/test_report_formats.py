"""JSON, JUnit, Markdown, the page and the trace, read back as their users read them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from test_report_samples import (
    HOSTILE,
    exception_on_three,
    full_report,
    hostile,
    lost_rank,
    mismatch,
    passed,
    run_report,
    skipped,
)

from ppharness.findings import TraceEvent
from ppharness.report.html import render_html
from ppharness.report.json_report import render_json
from ppharness.report.junit import render_junit
from ppharness.report.markdown import MAX_CHARS, render_markdown
from ppharness.report.text import code_fence, code_span
from ppharness.report.trace import write_trace


def test_json_follows_the_contract() -> None:
    body = json.loads(render_json(full_report()))
    assert list(body)[:8] == [
        "schema", "version", "outcome", "exit_code", "target", "world", "environment", "scenarios",
    ]  # fmt: skip
    assert body["schema"] == "ppharness.result/1"
    assert (body["outcome"], body["exit_code"]) == ("hung", 3)
    assert "trace" not in body
    scenario = body["scenarios"][1]
    assert list(scenario)[:10] == [
        "name", "file", "outcome", "reason", "seed", "steps", "checks", "seconds", "ranks",
        "findings",
    ]  # fmt: skip
    assert "rows_per_step" not in scenario
    assert list(scenario["ranks"][0])[:4] == ["rank", "label", "outcome", "num_accepted_tokens"]
    assert scenario["findings"] == [
        {
            "kind": "mismatch", "rank": 1, "label": "PP1", "step": 7, "phase": "at_use",
            "req_id": "a", "slot": 2, "expected": 3, "actual": 1,
            "message": "PP1 read a stale value",
        }
    ]  # fmt: skip
    crashed = body["scenarios"][2]["findings"][0]
    assert "slot" not in crashed and crashed["exception"]["type"] == "IndexError"
    assert crashed["exception"]["frames"][0] == {
        "file": "engine/level_0.py",
        "line": 10,
        "function": "level_0",
    }


def test_json_has_a_row_for_every_rank_in_order() -> None:
    late = passed()
    late.ranks.reverse()
    gone = lost_rank()
    del gone.ranks[3]
    body = json.loads(render_json(run_report(late, gone, skipped())))
    for scenario in body["scenarios"]:
        assert [row["label"] for row in scenario["ranks"]] == ["PP0", "PP1", "PP2", "PP3"]
    assert body["scenarios"][1]["ranks"][3]["outcome"] == "crashed"
    assert {row["outcome"] for row in body["scenarios"][2]["ranks"]} == {"skipped"}


def test_json_of_odd_values() -> None:
    numpy = pytest.importorskip("numpy")
    report = run_report(mismatch())
    report.scenarios[0].seconds = float("nan")
    report.scenarios[0].findings[0].actual = numpy.int32(7)
    report.scenarios[0].ranks[0].num_accepted_tokens = numpy.array([1, 2], dtype=numpy.int32)
    report.scenarios[0].findings[0].message = "\ud800 [\n  1\n]"
    text = render_json(report)
    scenario = json.loads(text)["scenarios"][0]
    assert text.isascii() and "NaN" not in text
    assert scenario["seconds"] is None
    assert scenario["findings"][0]["actual"] == 7
    assert scenario["findings"][0]["message"] == "\\ud800 [\n  1\n]"
    assert scenario["ranks"][0]["num_accepted_tokens"] == [1, 2]
    assert '"num_accepted_tokens": [1, 2]' in text


def test_junit_counts() -> None:
    root = ET.fromstring(render_junit(full_report()).encode())
    (suite,) = root.findall("testsuite")
    counted = {k: int(suite.get(k, "-1")) for k in ("tests", "failures", "errors", "skipped")}
    assert counted == {"tests": 7, "failures": 1, "errors": 4, "skipped": 1}
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert len(cases["single-request"]) == 0
    failure = cases["stale-slot"].find("failure")
    assert failure is not None and failure.get("type") == "mismatch"
    assert "slot 2, expected 3, got 1" in failure.get("message", "")
    assert "!" in (failure.text or "") and "reproduce: ppharness run" in (failure.text or "")
    error = cases["scalar-fill"].find("error")
    assert error is not None and error.get("type") == "IndexError"
    skip = cases["only-pp2"].find("skipped")
    assert skip is not None and "needs a world" in skip.get("message", "")
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["world.pp_size"] == "4" and properties["environment.torch"] == "2.11.0"


def test_junit_of_a_run_that_did_not_run_is_not_green() -> None:
    report = run_report()
    report.error = "no GPU\x00"
    suite = ET.fromstring(render_junit(report).encode())[0]
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    report = run_report(passed())
    report.interrupted = True
    assert ET.fromstring(render_junit(report).encode())[0].get("errors") == "1"


def test_junit_survives_characters_that_xml_has_not() -> None:
    scenario = exception_on_three()
    assert scenario.findings[0].exception
    scenario.findings[0].exception.message = "".join(map(chr, range(0x20))) + "\ufffe\ud800]]>"
    report = run_report(scenario)
    report.environment["gpu"] = "\x00\uffff"
    ET.fromstring(render_junit(report).encode("utf-8"))


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_escapes_what_others_said_and_loads_nothing() -> None:
    report = full_report()
    report.notes, report.error, report.target = [HOSTILE], HOSTILE, {"name": HOSTILE}
    text = render_html(report)
    page = Page(text)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert "<script" not in text and "\u202e" not in text and "\x1b" not in text
    for _, attrs in page.tags:
        assert not {"src", "onload", "onclick", "style"} & set(attrs)
        assert (attrs.get("href") or "#").startswith(("#", "https://example.org/"))
    assert "alert(1)" in page.text
    text.encode("utf-8")


def test_page_shows_table_findings_and_grid() -> None:
    text = render_html(run_report(passed(), mismatch(), exception_on_three()))
    page = Page(text)
    assert "mismatch on PP1, step 7, at_use: request a, slot 2, expected 3, got 1" in page.text
    faults = [attrs for tag, attrs in page.tags if tag == "td" and attrs.get("class") == "fault"]
    assert len(faults) == 4
    assert "PP1 slot 2: expected 3, got 1" in page.text
    assert "engine/level_0.py:10 in level_0" in page.text  # folded away
    assert "prefers-color-scheme: dark" in text
    anchors = {attrs.get("href") for tag, attrs in page.tags if tag == "a"}
    assert {"#s0", "#s1"} <= anchors
    render_html(run_report())


def blocks(markdown: str) -> tuple[list[str], list[str]]:
    """(lines outside of code blocks, lines inside), as CommonMark reads fences."""
    outside, inside, fence = [], [], ""
    for line in markdown.splitlines():
        found = re.match(r"^ {0,3}(`{3,})([^`]*)$", line)
        if fence:
            if found and len(found.group(1)) >= len(fence) and not found.group(2).strip():
                fence = ""
            else:
                inside.append(line)
        elif found:
            fence = found.group(1)
        else:
            outside.append(line)
    assert not fence
    return outside, inside


def without_spans(line: str) -> str:
    """A line without its code spans, as CommonMark reads them."""
    return re.sub(r"(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)", "", line)


def test_markdown_fences_hold() -> None:
    report = full_report()
    report.notes = [HOSTILE]
    text = render_markdown(report)
    outside, inside = blocks(text)
    for line in map(without_spans, outside):
        assert not re.search(r"[@<>`]|alert|octocat", line), line
    assert any("``` ````" in line for line in inside)
    assert "\x1b" not in text and "\u202e" not in text
    assert "mismatch on PP1, step 7, at_use" in "\n".join(inside)
    assert any(line.endswith("<- PP1 slot 2: expected 3, got 1") for line in inside)
    assert "ppharness run --nproc 4 --target vllm@0.28.0 stale-slot" in inside
    table = [line for line in outside if line.startswith("|")]
    assert len({len(re.findall(r"\|", line)) for line in table}) == 1


def test_markdown_helpers() -> None:
    assert code_fence(["````"])[0] == "`````text"
    assert code_span("a`b") == "``a`b``"
    assert code_span("`a") == "`` `a ``"
    assert code_span("a|b\n") == r"`a\x7cb\n`"
    assert code_span(" ") == "(empty)"


def test_markdown_fits_into_an_issue() -> None:
    report = run_report(*[hostile() for _ in range(200)])
    for scenario in report.scenarios:
        scenario.findings[0].message = "x" * 100_000
    text = render_markdown(report)
    assert len(text) < MAX_CHARS + 100
    assert re.search(r"\d+ more scenarios that did not pass", text)
    blocks(text)


def test_trace_is_what_chrome_reads() -> None:
    events = [*run_report().trace, TraceEvent(0, "PP0", 1, "relay", "s", float("nan"), 1.0)]
    body = json.loads(write_trace(events))
    names = {
        e["pid"]: e["args"]["name"] for e in body["traceEvents"] if e["name"] == "process_name"
    }
    assert names == {0: "PP0", 1: "PP1"}
    bars = [e for e in body["traceEvents"] if e["ph"] == "X"]
    assert [(b["pid"], b["name"], b["ts"], b["dur"]) for b in bars] == [
        (0, "forward", 0.0, 250.0),
        (1, "forward", 500.0, 20.5),
    ]
    assert bars[0]["args"] == {"step": 0, "scenario": "single-request"}
    assert json.loads(write_trace([]))["traceEvents"] == []


def test_reports_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from ppharness.report import console, files, html, markdown, progress, trace"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
