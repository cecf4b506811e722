"""``ppharness matrix``: each target in a process of its own, one table of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from worlds import JSON, VERIFY, Run, run_fresh

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
