"""Runs ``ppharness`` for the tests: real ranks in processes of their own.

Most of a short run is the import of torch.  ``WarmPython`` pays it once: a process that
has imported everything forks for each run a child that is then the ``ppharness`` command,
with its own session, folder and output.  ``run_fresh`` starts a new Python.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

TARGETS = Path(__file__).resolve().parent / "targets"
PPHARNESS = (sys.executable, "-m", "ppharness")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
JSON = "result.json"  # in the folder of a run
VERIFY = """
name: verify
max_num_reqs: 4
num_speculative_tokens: 3
requests: [{id: a, prompt_tokens: 5, max_tokens: 9, accept: [2, 0, 3]}]
"""


@dataclass(frozen=True)
class Run:
    """How one run of the command ended."""

    code: int
    stdout: str
    stderr: str
    report: dict[str, Any] | None  # what --json wrote

    @property
    def scenarios(self) -> list[dict[str, Any]]:
        assert self.report is not None, self.stderr
        return list(self.report["scenarios"])

    def outcomes(self) -> dict[str, str]:
        """Scenario name -> outcome."""
        return {s["name"]: s["outcome"] for s in self.scenarios}

    def findings(self, scenario: str | None = None) -> list[dict[str, Any]]:
        """Of one scenario, or of all."""
        return [f for s in self.scenarios if scenario in (None, s["name"]) for f in s["findings"]]


def target(name: str) -> str:
    """``wrong_state.py:Some`` as ``--target`` takes it."""
    return f"{TARGETS / name}"


def environment(**extra: str) -> dict[str, str]:
    """The tests' own, less what would make a rank of every process."""
    gone = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    env = {k: v for k, v in os.environ.items() if k not in gone}
    return {**env, "NO_COLOR": "1", "COLUMNS": "120", "OMP_NUM_THREADS": "1", **extra}


def run_fresh(
    folder: Path,
    *args: str,
    command: tuple[str, ...] = PPHARNESS,
    timeout: float = 120.0,
    env: dict[str, str] | None = None,
) -> Run:
    """``command args`` in `folder`, in a new Python."""
    done = subprocess.run(
        [*command, *args], cwd=folder, env=environment(**(env or {})), timeout=timeout,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    return Run(done.returncode, done.stdout, done.stderr, read_report(folder))


def run_two_nodes(folder: Path, one: list[str], two: list[str]) -> tuple[Run, Run]:
    """Two torchrun agents of 2 ranks each on this machine; ``-m ppharness`` and these."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    agent = [
        "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", uuid.uuid4().hex,
        "--local-addr", "127.0.0.1", "-m", "ppharness", "--device", "cpu",
    ]  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(run_fresh, folder, *agent, *args, command=TORCHRUN, timeout=240)
            for args in (one, two)
        ]
        return runs[0].result(), runs[1].result()


def read_report(folder: Path) -> dict[str, Any] | None:
    """What ``--json result.json`` left in `folder`, None where it left nothing."""
    path = folder / JSON
    return json.loads(path.read_text()) if path.exists() else None


def processes_in(folder: Path) -> list[psutil.Process]:
    """Processes that still run in a folder; ranks inherit theirs.  Up to 3 s to go."""
    deadline = time.monotonic() + 3
    while True:
        found = []
        for process in psutil.process_iter():
            try:
                if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


class WarmPython:
    """A process that has imported ppharness with torch and Triton's interpreter."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(self, folder: Path, *args: str, timeout: float = 120.0) -> Run:
        """``ppharness args`` in `folder`; killed, with its ranks, after `timeout` seconds."""
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=environment(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES=""), text=True,
            )  # fmt: skip
        server = self._server
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps([str(folder), list(args), timeout]) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        if not answer:
            self._server = None
            raise RuntimeError(f"ppharness does not import: exit code {server.wait()}")
        stdout, stderr = (_read(folder / name) for name in ("stdout", "stderr"))
        return Run(int(answer), stdout, stderr, read_report(folder))

    def close(self) -> None:
        if self._server is not None:
            self._server.communicate(timeout=30)


def _read(path: Path) -> str:
    return path.read_text(errors="replace")


def _serve() -> None:
    del sys.path[0]  # the tests' folder: no run may import from it
    import torch.distributed.elastic.multiprocessing  # noqa: F401  also by the launcher

    import ppharness.cli
    import ppharness.launcher
    import ppharness.rank
    import ppharness.report.console
    import ppharness.scenario.schedule
    import ppharness.world.launch  # noqa: F401

    for line in sys.stdin:
        folder, args, timeout = json.loads(line)
        child = os.fork()
        if child == 0:
            _become_command(folder, args)
        deadline = time.monotonic() + timeout
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.005)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become_command(folder: str, args: list[str]) -> None:
    """In the forked child; never returns."""
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for place, path in enumerate((os.devnull, "stdout", "stderr")):
            handle = os.open(path, flags if place else os.O_RDONLY, 0o644)
            os.dup2(handle, place)
            os.close(handle)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.argv = ["ppharness", *args]
        from ppharness.cli import main

        code = main(args)
    except SystemExit as leaving:  # argparse
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
