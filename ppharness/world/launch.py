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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, start_processes

from .board import Board, Position

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_POLL = 0.02
_KILL_AFTER = 15.0  # seconds that survivors have to report after the first rank ended


@dataclass
class WorldEnd:
    """How the ranks of one world ended."""

    exit_codes: dict[int, int]  # rank -> exit code, negative for a signal
    interrupted: bool
    last_seen: dict[int, Position | None] = field(default_factory=dict)
    found: dict[str, bytes] = field(default_factory=dict)  # of the keys that were asked for


def launch_world(
    entry: Callable[..., None],
    args: tuple[Any, ...],
    *,
    nproc: int,
    world_id: str,
    start_method: str,
    extra_env: dict[str, str],
    keys: Sequence[str] = (),
) -> WorldEnd:
    """Starts `nproc` ranks, waits for all of them, and leaves no process behind.

    Args:
        keys: what to look for in the ranks' store once they have ended.
    """
    board, board_path = Board.create(nproc)
    # The ranks' store: on the loopback only, on a port that the system picks.
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    envs = {
        rank: {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(nproc),
            "LOCAL_WORLD_SIZE": str(nproc),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "PPHARNESS_WORLD": world_id,
            "PPHARNESS_BOARD": board_path,
            "TORCHELASTIC_MAX_RESTARTS": "0",
            **extra_env,
        }
        for rank in range(nproc)
    }
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    with _Interrupts() as interrupts:
        context = start_processes(
            name="ppharness",
            entrypoint=entry,
            args=dict.fromkeys(range(nproc), args),
            envs=envs,
            logs_specs=_NoFiles(),
            start_method=start_method,
        )
        interrupts.listen()
        with _killed_at_the_end(context.pids()) as processes:
            # Only now: its thread takes locks of the C library, and a rank that is forked
            # while one is held waits for it for ever.
            store = dist.TCPStore(
                "127.0.0.1",
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
                use_libuv=True,
            )
            prefixed = dist.PrefixStore(f"ppharness/{world_id}/0", store)
            end = _wait_for_all(processes, prefixed, interrupts)
    end.last_seen = {rank: board.read(rank) for rank in range(nproc)}
    end.found = {key: prefixed.get(key) for key in keys if prefixed.check([key])}
    board.close()
    return end


class _NoFiles(LogsSpecs):
    """Ranks write to the launcher's own streams; no folder of logs is made."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        none = dict.fromkeys(envs, "")
        return LogsDest(stdouts=none, stderrs=none, error_files=dict.fromkeys(envs, os.devnull))

    @property
    def root_log_dir(self) -> str:
        return os.devnull


class _Interrupts:
    """Counts SIGINT and SIGTERM instead of ending at them, while it is entered.

    They are held back until ``listen``, since ``start_processes`` puts in handlers of its
    own, which raise.
    """

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> _Interrupts:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._previous = {number: signal.getsignal(number) for number in _SIGNALS}
        return self

    def listen(self) -> None:
        """From here on; the ones that came since it was entered count too."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _on_signal(self, number: int, frame: Any) -> None:
        self.count += 1


@contextlib.contextmanager
def _killed_at_the_end(pids: dict[int, int]) -> Iterator[dict[int, psutil.Process]]:
    """The ranks' processes; none of them lives longer than this."""
    processes = {rank: psutil.Process(pid) for rank, pid in pids.items()}
    try:
        yield processes
    finally:
        _kill(processes)


def _wait_for_all(
    processes: dict[int, psutil.Process], store: dist.Store, interrupts: _Interrupts
) -> WorldEnd:
    """Until every rank has ended; an interrupt is passed on once, and by force the second time."""
    end = WorldEnd({}, interrupted=False)
    deadline: float | None = None
    while len(end.exit_codes) < len(processes):
        for rank, process in processes.items():
            if rank not in end.exit_codes and (code := _exit_code(process)) is not None:
                end.exit_codes[rank] = code
                deadline = deadline or time.monotonic() + _KILL_AFTER
        if interrupts.count and not end.interrupted:
            end.interrupted = True
            store.set("interrupt", "1")
        late = deadline is not None and time.monotonic() > deadline
        if late or interrupts.count > 1:
            _kill(processes)
        time.sleep(_POLL)
    end.interrupted = interrupts.count > 0
    return end


def _kill(processes: dict[int, psutil.Process]) -> None:
    for process in processes.values():
        with contextlib.suppress(psutil.Error):
            process.kill()


def _exit_code(process: psutil.Process) -> int | None:
    """The exit code of a child that has ended, None while it runs."""
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    if pid == 0:
        return None
    return os.waitstatus_to_exitcode(status)
