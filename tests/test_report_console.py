"""The text on stdout, and what is shown while running."""

from __future__ import annotations

import io
import re

import pytest
from test_report_samples import (
    CELLS,
    HOSTILE,
    exception_on_three,
    full_report,
    hang,
    hostile,
    lost_rank,
    mismatch,
    passed,
    ranks,
    run_report,
    skipped,
)

from ppharness.findings import Finding, RunReport
from ppharness.report.console import render
from ppharness.report.grid import build_grid, grid_lines, shorten_cell
from ppharness.report.groups import group_findings
from ppharness.report.progress import RunProgress
from ppharness.report.text import clip, message_lines, printable


def shown(report: RunReport, *, verbosity: int = 0, width: int = 100) -> list[str]:
    return render(report, verbosity=verbosity, width=width, color=False).splitlines()


def test_first_line_says_the_world_and_last_the_totals() -> None:
    lines = shown(run_report(passed(), mismatch(), skipped()))
    assert lines[0] == ("4 ranks (pp 4, tp 1), cpu, gloo, triton interpreted, target vllm 0.28.0")
    assert lines[-1] == ("3 scenarios: 1 passed, 1 failed, 1 skipped; 960 checks in 0.8 s: failed")


def test_table_marks_every_rank() -> None:
    lines = shown(full_report())
    marks = {line.split()[0]: line.split()[1:5] for line in lines[2:9]}
    assert marks["stale-slot"] == ["ok", "FAIL", "ok", "ok"]
    assert marks["scalar-fill"] == ["CRASH", "CRASH", "CRASH", "ok"]
    assert marks["lost-broadcast"] == ["ok", "ok", "HUNG", "ok"]
    assert marks["killed"] == ["ok", "ok", "ok", "LOST"]
    assert marks["only-pp2"] == ["skip"] * 4
    assert "needs a world of pp 2" in "\n".join(lines)


@pytest.mark.parametrize(("num_ranks", "row"), [(16, ".F...... ........"), (256, "255 ok, 1 FAIL")])
def test_many_ranks_stay_narrow(num_ranks: int, row: str) -> None:
    scenario = mismatch()
    scenario.ranks = ranks(num_ranks, PP1="failed")
    lines = shown(run_report(scenario, pp_size=num_ranks), width=80)
    assert any(line.startswith("stale-slot") and row in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert f"(3 of {num_ranks} ranks)" in "\n".join(lines)


def test_grid_marks_the_faulty_cell_and_no_other() -> None:
    lines = shown(run_report(mismatch()), width=140)
    head = next(line for line in lines if line.strip().startswith("step "))
    marked = [line for line in lines if re.search(r"\w! ", line)]
    assert len(marked) == 1
    row = marked[0]
    assert row.split()[0] == "7"
    assert row.endswith("<- PP1 slot 2: expected 3, got 1")
    assert head.index("PP1") < row.index("!") < head.index("PP2")
    assert row.count("!") == 1
    steps = [line.split()[0] for line in lines[lines.index(head) + 1 :][:6]]
    assert steps == ["4", "5", "6", "7", "8", "9"]


def test_grid_shows_nothing_where_a_rank_did_not_get() -> None:
    grid = build_grid(hang(), hang().ranks)
    assert grid
    cells = {row.step: [cell.text for cell in row.cells] for row in grid.rows}
    assert cells[5] == [CELLS[5]] * 4
    assert cells[6] == [CELLS[6], CELLS[6], ".", CELLS[6]]
    assert [(r.step, c) for r in grid.rows for c, x in enumerate(r.cells) if x.fault] == [(5, 2)]


def test_lost_rank_is_placed_where_it_was_last_seen() -> None:
    text = "\n".join(shown(run_report(lost_rank())))
    assert "lost rank on PP3" in text and "last seen: PP3 at step 4, forward" in text
    assert re.search(r"^ +4 .*! +<- PP3 lost$", text, re.M)


def test_a_fault_after_the_last_step_names_its_phase() -> None:
    scenario = mismatch()
    scenario.findings = [Finding("mismatch", 3, "PP3", 12, "drain", "left", slot=0, actual=2)]
    grid = build_grid(scenario, scenario.ranks)
    assert grid and grid.rows[-1].step == 12
    assert [c.text for c in grid.rows[-1].cells] == ["-", "-", "-", "drain"]


def test_no_grid_without_a_step() -> None:
    scenario = lost_rank()
    scenario.ranks[3].last_position = None
    assert build_grid(scenario, scenario.ranks) is None


def test_a_wide_grid_keeps_the_first_fault() -> None:
    scenario = mismatch()
    scenario.ranks = ranks(64, PP40="failed")
    scenario.findings[0].rank, scenario.findings[0].label = 40, "PP40"
    grid = build_grid(scenario, scenario.ranks)
    assert grid
    lines = grid_lines(grid, 80)
    assert "PP40" in lines[0] and "PP39" in lines[0] and "of 64 ranks" in lines[0]
    assert sum("!" in line for line in lines) == 1


def test_the_same_exception_on_several_ranks_is_shown_once() -> None:
    text = "\n".join(shown(run_report(exception_on_three())))
    assert text.count("IndexError: index 8 is out of bounds") == 1
    assert "exception on PP0, PP1, PP2, step 2, postprocess_state" in text
    assert "level_2.py:12 in level_2" in text and "engine/level_1.py" not in text
    assert text.index("level_2.py") < text.index("level_5.py")


def test_different_exceptions_are_not_grouped() -> None:
    scenario = exception_on_three()
    assert scenario.findings[2].exception
    scenario.findings[2].exception = type(scenario.findings[2].exception)("ValueError", "other")
    assert [g.labels for g in group_findings(scenario)] == [["PP0", "PP1"], ["PP2"]]


def test_at_most_ten_findings() -> None:
    scenario = mismatch()
    scenario.findings = [
        Finding("mismatch", 1, "PP1", 7, "at_use", "", "a", slot, expected=1, actual=2)
        for slot in range(25)
    ]
    text = "\n".join(shown(run_report(scenario)))
    assert text.count("mismatch on PP1") == 10
    assert "and 15 more findings" in text
    assert "(+24 more)" in text


def test_hangs_come_after_their_cause() -> None:
    scenario = hang()
    scenario.findings.append(Finding("mismatch", 3, "PP3", 6, "at_use", "late"))
    assert [g.first.kind for g in group_findings(scenario)] == ["mismatch", "hang"]


def test_reproduce_names_the_scenario_and_quotes_it() -> None:
    report = run_report(mismatch(), hostile())
    lines = shown(report)
    assert "  reproduce: ppharness run --nproc 4 --target vllm@0.28.0 stale-slot" in lines
    assert any("vllm@0.28.0 '</td>" in line for line in lines)
    report.reproduce = "ppharness run {file}"
    assert "  reproduce: ppharness run configs/stale-slot.yaml" in shown(report)


def test_quiet_shows_failures_and_totals_only() -> None:
    lines = shown(run_report(passed(), mismatch()), verbosity=-1)
    assert lines[0].startswith("FAIL stale-slot")
    assert not any("single-request" in line for line in lines)
    assert len(shown(run_report(passed()), verbosity=-1)) == 1


def test_verbose_adds_numbers() -> None:
    lines = shown(run_report(passed()), verbosity=1)
    assert lines[2].split()[-3:] == ["steps", "checks", "seconds"]
    assert lines[3].split()[-3:] == ["12", "480", "0.25"]


def test_plain_text_is_ascii_without_control_characters() -> None:
    report = full_report()
    report.notes, report.error = [HOSTILE + "\u5ba2"], HOSTILE
    text = render(report, verbosity=1, width=80, color=False)
    assert text.isascii()
    assert all(char == "\n" or char.isprintable() for char in text)
    assert r"\u202eabc" in text and r"\x1b[31mred" in text


def test_color_adds_nothing_but_color() -> None:
    report = full_report()
    painted = render(report, verbosity=0, width=100, color=True)
    assert "\x1b[31m" in painted
    plain = re.sub(r"\x1b\[\d+m", "", painted)
    assert plain == render(report, verbosity=0, width=100, color=False)


def test_empty_error_and_interrupted_runs() -> None:
    report = run_report()
    report.error = "no GPU"
    assert shown(report)[-2:] == ["error: no GPU", "0 scenarios; 0 checks in 0.0 s: error"]
    report = run_report(passed())
    report.interrupted = True
    assert shown(report)[-1].endswith(": error (interrupted)")


def test_cells_are_shortened_at_their_commas() -> None:
    cell = "prefill a, decode b, verify c"
    assert shorten_cell(cell, 40) == cell
    assert shorten_cell(cell, 22) == "prefill a, decode b +1"
    assert shorten_cell(cell, 12) == "prefill a +2"
    assert shorten_cell(cell, 9) == "pre a +2"
    assert shorten_cell("x" * 30, 9) == "x" * 7 + ".."


def test_printable() -> None:
    assert printable("a\x00\x1b[0m\u202e\u2066\u200b\ud800\n") == (
        r"a\x00\x1b[0m\u202e\u2066\u200b\ud800\n"
    )
    assert printable("\u5ba2") == "\u5ba2" and printable("\u5ba2", ascii_only=True) == r"\u5ba2"
    assert clip("abcdef", 4) == "ab.."
    assert message_lines("x\n" * 20)[-1] == "... 8 more lines"


def test_progress_in_plain_lines() -> None:
    stream = io.StringIO()
    progress = RunProgress(stream=stream)
    progress.start(25)
    progress.scenario_started("single-request")
    progress.scenario_finished(passed())
    progress.scenario_finished(hostile())
    progress.stop()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[ 1/25] single-request ... passed (0.25 s)"
    assert len(lines) == 2 and lines[1].isprintable()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = RunProgress(stream=stream)
    progress.start(2)
    for scenario in (passed(), mismatch()):
        progress.scenario_started(scenario.name)
        progress.scenario_finished(scenario)
    progress.stop()
    progress.stop()
    text = stream.getvalue()
    assert "2/2" in text and "stale-slot ... failed" in text
    assert "single-request ... passed" not in text
    assert "\x1b[?25l" not in text  # the cursor stays


def test_progress_quiet_and_on_a_closed_stream() -> None:
    stream = io.StringIO()
    quiet = RunProgress(quiet=True, stream=stream)
    quiet.start(1)
    quiet.scenario_finished(passed())
    assert stream.getvalue() == ""
    broken = RunProgress(stream=stream)
    stream.close()
    broken.start(1)
    broken.scenario_started("a")
    broken.scenario_finished(passed())
    broken.stop()
