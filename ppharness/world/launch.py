"""Our own launcher: ranks through torch elastic's Python API, torch imported once.

On a CPU the ranks are forked; where CUDA may be used they are spawned.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, start_processes

_POLL = 0.02
_KILL_AFTER = 15.0  # seconds that survivors have to report after the first rank ended


@dataclass
class WorldEnd:
    """How the ranks of one world ended."""

    exit_codes: dict[int, int]  # rank -> exit code, negative for a signal
    interrupted: bool


def launch_world(
    entry: Callable[..., None],
    args: tuple[Any, ...],
    *,
    nproc: int,
    world_id: str,
    start_method: str,
    extra_env: dict[str, str],
) -> WorldEnd:
    """Starts `nproc` ranks, waits for all of them, and leaves no process behind."""
    # The store listens on the loopback only, on a port that the system picks.
    listener = socket.create_server(("127.0.0.1", 0))
    store = dist.TCPStore(
        "127.0.0.1",
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=True,
    )
    envs = {
        rank: {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(nproc),
            "LOCAL_WORLD_SIZE": str(nproc),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "PPHARNESS_WORLD": world_id,
            "TORCHELASTIC_MAX_RESTARTS": "0",
            **extra_env,
        }
        for rank in range(nproc)
    }
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    context = start_processes(
        name="ppharness",
        entrypoint=entry,
        args=dict.fromkeys(range(nproc), args),
        envs=envs,
        logs_specs=_NoFiles(),
        start_method=start_method,
    )
    prefixed = dist.PrefixStore(f"ppharness/{world_id}/0", store)
    return _Waiting(context.pids(), prefixed).run()


class _NoFiles(LogsSpecs):
    """Ranks write to the launcher's own streams; no folder of logs is made."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        none = dict.fromkeys(envs, "")
        return LogsDest(stdouts=none, stderrs=none, error_files=dict.fromkeys(envs, os.devnull))

    @property
    def root_log_dir(self) -> str:
        return os.devnull


class _Waiting:
    """Waits for the ranks, passing on an interrupt once and by force the second time."""

    def __init__(self, pids: dict[int, int], store: dist.Store):
        self.processes = {rank: psutil.Process(pid) for rank, pid in pids.items()}
        self.store = store
        self.exit_codes: dict[int, int] = {}
        self.interrupts = 0

    def run(self) -> WorldEnd:
        previous = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            self._wait()
        finally:
            for process in self.processes.values():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            for number, handler in previous.items():
                signal.signal(number, handler)
        return WorldEnd(self.exit_codes, self.interrupts > 0)

    def _wait(self) -> None:
        deadline: float | None = None
        while len(self.exit_codes) < len(self.processes):
            for rank, process in self.processes.items():
                if rank not in self.exit_codes and (code := _exit_code(process)) is not None:
                    self.exit_codes[rank] = code
                    deadline = deadline or time.monotonic() + _KILL_AFTER
            late = deadline is not None and time.monotonic() > deadline
            if late or self.interrupts > 1:
                for process in self.processes.values():
                    with contextlib.suppress(psutil.Error):
                        process.kill()
            time.sleep(_POLL)

    def _on_signal(self, number: int, frame: Any) -> None:
        self.interrupts += 1
        if self.interrupts == 1:
            with contextlib.suppress(Exception):
                self.store.set("interrupt", "1")


def _exit_code(process: psutil.Process) -> int | None:
    """The exit code of a child that has ended, None while it runs."""
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    if pid == 0:
        return None
    return os.waitstatus_to_exitcode(status)
