"""``ppharness matrix``: each target in a process of its own, one table of all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from worlds import JSON, PPHARNESS, VERIFY, Run, environment, processes_in, run_fresh

ENDS = """
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
LEAVES = "import os\nos._exit(0)\n"


def matrix(folder: Path, *args: str) -> tuple[Run, list[dict[str, Any]]]:
    """A matrix of two ranks on `verify.yaml`; with its columns, none where it wrote none."""
    (folder / "verify.yaml").write_text(VERIFY)
    run = run_fresh(
        folder, "matrix", "--nproc", "2", "--device", "cpu", "--json", JSON, *args, "verify.yaml"
    )
    return run, run.report["columns"] if run.report else []


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [(ENDS, 3, "ended by SIGKILL"), (LEAVES, 2, "exit code 0 and left no result")],
    ids=["killed", "left"],
)
def test_a_target_that_ends_its_process(tmp_path: Path, text: str, code: int, said: str) -> None:
    (tmp_path / "ends.py").write_text(text)
    run, columns = matrix(tmp_path, "--target", "ends.py:X", "--target", "builtin")
    assert run.code == code
    ended, builtin = columns
    assert (ended["exit_code"], ended["outcome"]) == (code, "error")
    assert said in ended["error"] and said in run.stdout
    assert (builtin["exit_code"], builtin["outcome"]) == (0, "passed")


def test_run_options_reach_every_target(tmp_path: Path) -> None:
    """A rank strikes, of 2 x 2, in each run; what made the table says so."""
    options = ["--inject", "raise@PP1_TP0:2", "--no-ledger", "--perturb", "3", "-x",
               "--check", "each-step", "-k", "verify or not verify", "--markdown", "x.md",
               "--seed", "4", "--tp", "2"]  # fmt: skip
    run, columns = matrix(
        tmp_path, "--target", "builtin", "--target", "index-fill", "--nproc", "4", *options
    )
    assert run.code == 1, run.stderr
    assert len(columns) == 2
    for column in columns:
        result = column["result"]
        assert result["injections"] == {"raise@PP1_TP0:2": 1}
        assert result["scenarios"][0]["seed"] == 4
        assert "raise@PP1_TP0:2 --no-ledger" in result["reproduce"]
        assert "--perturb 3" in result["reproduce"]
    made = (tmp_path / "x.md").read_text()
    assert (
        "`ppharness matrix --nproc 4 --device cpu --tp 2 --seed 4 --perturb 3 --check each-step"
        " -k 'verify or not verify' --inject raise@PP1_TP0:2 --no-ledger -x --target builtin"
        " --target index-fill verify.yaml`" in made
    )


def test_less_and_more(tmp_path: Path) -> None:
    run, _ = matrix(tmp_path, "--target", "builtin", "-q")
    assert run.stderr == "" and "verify" in run.stdout
    run, _ = matrix(tmp_path, "--target", "builtin", "-v")
    assert "[1/1] builtin: passed" in run.stderr
    table = run.stdout.index("scenario  builtin")
    assert "1 scenario" in run.stdout[:table]  # the target's own result comes before it


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--junit", "x.xml"), "--junit"),
        (("--html", "x.html"), "--html"),
        (("--trace", "x.trace"), "--trace"),
        (("--inject", "raise@7:2"), "outside this world of 2"),
    ],
)
def test_refused_before_anything_runs(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    run, columns = matrix(tmp_path, "--target", "builtin", *args)
    assert (run.code, run.stdout, columns) == (2, "", [])
    assert said in run.stderr and "[1/1]" not in run.stderr


def test_a_fault_that_never_struck_is_told_with_its_target(tmp_path: Path) -> None:
    run, _ = matrix(tmp_path, "--target", "builtin", "--inject", "raise@0:900")
    assert run.code == 2
    assert "builtin: --inject raise@0:900: it never struck" in run.stderr


FIRST = """
name: first
requests: [{id: a, prompt_tokens: 5, max_tokens: 3}]
"""
LONG = """
name: long
requests: [{id: a, prompt_tokens: 5, max_tokens: 4000}]
"""  # more steps than a test waits for


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A matrix of two targets, well into the long scenario of the first one."""
    (tmp_path / "first.yaml").write_text(FIRST)
    (tmp_path / "long.yaml").write_text(LONG)
    (tmp_path / "tmp").mkdir()
    with open(tmp_path / "stderr", "wb") as stderr, open(tmp_path / "stdout", "wb") as stdout:
        process = subprocess.Popen(
            [*PPHARNESS, "matrix", "--nproc", "2", "--device", "cpu", "--target", "builtin",
             "--target", "index-fill", "--json", JSON, "--markdown", "x.md", "first.yaml",
             "long.yaml"],
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            start_new_session=True, env=environment(TMPDIR=str(tmp_path / "tmp")),
        )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(psutil.Process(process.pid).children(recursive=True)) < 3:  # a run and its ranks
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(1.5)
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("group", [True, False], ids=["group", "alone"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_interrupted(
    tmp_path: Path, started: subprocess.Popen[bytes], number: int, group: bool
) -> None:
    """What has run is in the table and the files; no process and no folder stays."""
    (os.killpg if group else os.kill)(started.pid, number)
    assert started.wait(timeout=40) == 130
    assert not processes_in(tmp_path)
    assert not list((tmp_path / "tmp").glob("ppharness-matrix-*"))
    (column,) = json.loads((tmp_path / JSON).read_text())["columns"]
    assert (column["target"], column["exit_code"]) == ("builtin", 130)
    assert [s["outcome"] for s in column["result"]["scenarios"]] == ["passed", "skipped"]
    for name in ("stdout", "x.md"):
        assert "first" in (tmp_path / name).read_text()
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    assert "index-fill" not in (tmp_path / "stderr").read_text()


def test_interrupted_before_there_is_a_result(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\npathlib.Path('here').touch()\ntime.sleep(60)\n"
    )
    (tmp_path / "first.yaml").write_text(FIRST)
    process = subprocess.Popen(
        [*PPHARNESS, "matrix", "--nproc", "2", "--device", "cpu", "--target", "slow.py:X",
         "--target", "builtin", "--json", JSON, "first.yaml"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not (tmp_path / "here").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    (column,) = json.loads((tmp_path / JSON).read_text())["columns"]
    assert (column["exit_code"], column["error"]) == (130, "interrupted")


def test_killed(tmp_path: Path, started: subprocess.Popen[bytes]) -> None:
    started.kill()
    started.wait(timeout=20)
    assert not processes_in(tmp_path)
