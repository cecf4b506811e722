"""How a run ends when it is told to, or when a process of it is killed or stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from worlds import (
    JSON,
    PPHARNESS,
    TORCHRUN,
    WarmPython,
    environment,
    processes_in,
    read_report,
    run_fresh,
    run_two_nodes,
    target,
)

FILL = """
name: fill
max_num_reqs: 4
initial: 9
calls: [{idx_mapping: [2, -1, 0], num_sampled: 0}]
"""
LONG = """
name: long
max_num_reqs: 2
requests: [{id: a, prompt_tokens: 5, max_tokens: 2000}]
"""  # more steps than any test waits for
SHORT = """
name: short
requests: [{id: a, prompt_tokens: 5, max_tokens: 6}]
"""
RUN = (*PPHARNESS, "run", "--nproc", "3")
UNDER_TORCHRUN = (*TORCHRUN, "--nproc-per-node", "3", "-m", "ppharness")
LAUNCHERS = pytest.mark.parametrize("command", [RUN, UNDER_TORCHRUN], ids=["run", "torchrun"])

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    """Starts a long run in a session of its own and waits until it is well into it."""
    processes: list[subprocess.Popen[str]] = []

    def start(*command: str, long: str = LONG) -> subprocess.Popen[str]:
        for name, text in (("fill.yaml", FILL), ("long.yaml", long)):
            (tmp_path / name).write_text(text)
        with open(tmp_path / "stderr", "w") as stderr, open(tmp_path / "stdout", "w") as stdout:
            process = subprocess.Popen(
                [*command, "--device", "cpu", "--json", JSON, "fill.yaml", "long.yaml"],
                cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True,
                start_new_session=True, env=environment(),
            )  # fmt: skip
        processes.append(process)
        wait_until(lambda: "[1/2] fill" in (tmp_path / "stderr").read_text(), process)
        time.sleep(1.0)  # into the long one
        assert process.poll() is None
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert process.poll() is None, "ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def end_by(number: int, process: subprocess.Popen[str], *, group: bool = False) -> None:
    """Sends a signal to the launcher, or to all as a terminal does, and waits for its end."""
    assert psutil.Process(process.pid).children(recursive=True)
    (os.killpg if group else os.kill)(process.pid, number)
    process.wait(timeout=40)


def result_in(folder: Path) -> dict[str, Any]:
    """What was written, with every scenario and every rank accounted for."""
    report: dict[str, Any] = json.loads((folder / JSON).read_text())
    assert [s["name"] for s in report["scenarios"]] == ["fill", "long"]
    assert report["scenarios"][0]["outcome"] == "passed"
    for scenario in report["scenarios"]:
        assert [r["label"] for r in scenario["ranks"]] == ["PP0", "PP1", "PP2"]
    return report


@pytest.mark.parametrize("group", [True, False], ids=["group", "launcher"])
def test_interrupted(tmp_path: Path, started: Start, group: bool) -> None:
    """Ctrl-C on a terminal reaches the whole group, `kill -INT` the launcher alone."""
    process = started(*RUN)
    end_by(signal.SIGINT, process, group=group)
    assert not processes_in(tmp_path)
    report = result_in(tmp_path)
    assert (process.returncode, report["exit_code"]) == (130, 130)
    assert not report["scenarios"][1]["findings"]
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    assert "fill" in (tmp_path / "stdout").read_text()


def test_halted_for_a_moment(tmp_path: Path, started: Start) -> None:
    """Ctrl-Z and `fg`, or a debugger that looks at a rank: nobody was told to end."""
    process = started(*RUN, long=LONG.replace("2000", "1000"))
    ranks = psutil.Process(process.pid).children()
    for _ in range(3):
        for rank in ranks:
            rank.suspend()
        time.sleep(0.2)
        for rank in ranks:
            rank.resume()
        time.sleep(0.2)
    process.wait(timeout=60)
    report = result_in(tmp_path)
    assert (process.returncode, report["exit_code"]) == (0, 0)


def test_interrupted_under_torchrun(tmp_path: Path, started: Start) -> None:
    process = started(*UNDER_TORCHRUN)
    end_by(signal.SIGINT, process, group=True)
    assert not processes_in(tmp_path)
    assert process.returncode != 0
    assert result_in(tmp_path)["exit_code"] == 130


@LAUNCHERS
def test_told_to_end(tmp_path: Path, started: Start, command: tuple[str, ...]) -> None:
    """As by a CI system at its time limit: what has run is reported."""
    process = started(*command)
    end_by(signal.SIGTERM, process)
    assert not processes_in(tmp_path)
    assert process.returncode != 0
    assert result_in(tmp_path)["exit_code"] != 0


@LAUNCHERS
def test_a_killed_launcher_leaves_nothing(
    tmp_path: Path, started: Start, command: tuple[str, ...]
) -> None:
    end_by(signal.SIGKILL, started(*command))
    assert not processes_in(tmp_path)


@pytest.mark.parametrize(
    ("command", "delay"), [(RUN, 0.0), (RUN, 0.02), (UNDER_TORCHRUN, 1.5)],
    ids=["run-at-once", "run", "torchrun"],
)  # fmt: skip
def test_a_launcher_killed_as_it_starts_ranks_leaves_nothing(
    tmp_path: Path, command: tuple[str, ...], delay: float
) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    launcher = subprocess.Popen(
        [*command, "--device", "cpu", "long.yaml"], cwd=tmp_path, env=environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: bool(psutil.Process(launcher.pid).children()), launcher)
    time.sleep(delay)
    launcher.kill()
    launcher.wait()
    assert not processes_in(tmp_path)


@LAUNCHERS
@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_is_named(
    tmp_path: Path, started: Start, command: tuple[str, ...], rank: int
) -> None:
    process = started(*command)
    ranks_of(process)[rank].kill()
    process.wait(timeout=40)
    assert not processes_in(tmp_path)
    report = result_in(tmp_path)
    assert report["exit_code"] == 3
    (finding,) = report["scenarios"][1]["findings"]
    assert (finding["kind"], finding["rank"]) == ("lost_rank", rank)
    assert finding["step"] is not None


def test_a_stopped_rank_is_named(tmp_path: Path, started: Start) -> None:
    process = started(*RUN, "--timeout", "3")
    ranks_of(process)[1].suspend()
    process.wait(timeout=60)
    assert not processes_in(tmp_path)
    hung = result_in(tmp_path)["scenarios"][1]
    (finding,) = hung["findings"]
    assert (finding["kind"], finding["label"]) == ("hang", "PP1")
    stacks = [rank.get("stack") for rank in hung["ranks"]]
    assert "one_step.run" in stacks[0] or "agree" in stacks[0]
    assert stacks[1] is None  # it cannot answer
    assert "one_step.run" in stacks[2] or "agree" in stacks[2]


def test_a_rank_that_leaves_at_start_up_is_lost(tmp_path: Path) -> None:
    (tmp_path / "short.yaml").write_text(SHORT)
    run = run_fresh(
        tmp_path, "short.yaml", "--json", JSON, "--target", target("leaving.py:LeavesAtStartUp"),
        command=UNDER_TORCHRUN,
    )  # fmt: skip
    assert not processes_in(tmp_path)
    assert run.code == 1
    (finding,) = run.findings()
    assert (finding["kind"], finding["label"]) == ("lost_rank", "PP1")
    assert [r["label"] for r in run.scenarios[0]["ranks"]] == ["PP0", "PP1", "PP2"]


@pytest.mark.parametrize("rank", [0, 3], ids=["first-node", "second-node"])
def test_two_nodes_lose_a_rank(tmp_path: Path, rank: int) -> None:
    """The other node hears of it: the report is whole and names the right one."""
    (tmp_path / "short.yaml").write_text(SHORT)
    same = ["--json", JSON, "--inject", f"kill@{rank}:4", "short.yaml"]
    run_two_nodes(tmp_path, same, same)
    assert not processes_in(tmp_path)
    report = read_report(tmp_path)
    assert report is not None and report["exit_code"] == 3
    (finding,) = report["scenarios"][0]["findings"]
    assert (finding["kind"], finding["rank"], finding["step"]) == ("lost_rank", rank, 4)


def test_a_rank_that_runs_no_python_shows_its_stack(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    """Its threads cannot answer, since it never gives the interpreter's lock back."""
    (tmp_path / "short.yaml").write_text(SHORT)
    run = warm_python.run(
        tmp_path, "run", "--nproc", "3", "--timeout", "3", "--json", JSON, "short.yaml",
        "--target", target("raising.py:HoldsTheLock"),
    )  # fmt: skip
    assert run.code == 3
    (finding,) = run.findings("short")
    assert (finding["kind"], finding["label"], finding["step"]) == ("hang", "PP1", 3)
    assert "search_for_ever" in finding["stack"]


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks' processes in order: the launcher starts one after the other."""
    children = psutil.Process(process.pid).children()
    assert len(children) == 3
    return sorted(children, key=lambda child: (child.create_time(), child.pid))
