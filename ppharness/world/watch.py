"""A thread that watches while the main thread works or is blocked.

It takes the signals, sees other processes of this host die, hears through the store
that another rank is in trouble, and notices when its own main thread stands still.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from .board import Board
from .waiting import START_TIMEOUT

LEFT = "left"  # phase of a rank that has finished
_TICK = 0.1
_STORE_EVERY = 0.25
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME_PRESS = 0.5  # one Ctrl-C can arrive twice: from the terminal and from the launcher


class Watch:
    """Calls `on_trouble(why)` once, from its own thread, when this rank must end."""

    def __init__(
        self,
        store: Any,
        rank: int,
        *,
        timeout: float,
        on_trouble: Callable[[str], None],
        on_interrupt: Callable[[], None],
    ):
        self.store = store
        self.rank = rank
        self.timeout = timeout
        self.board: Board | None = None
        self.interrupted_at: float | None = None
        self._on_trouble, self._on_interrupt = on_trouble, on_interrupt
        self._peers: dict[int, int] = {}  # pidfd -> rank
        self._seen: set[int] = set()
        self._stopped = threading.Event()
        self._store_checked = 0.0
        self._main = threading.main_thread()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._thread = threading.Thread(target=self._run, name="ppharness-watch", daemon=True)

    def start(self) -> None:
        """From here on nothing goes unnoticed."""
        self._thread.start()

    def stop(self) -> None:
        """The run is over."""
        self._stopped.set()
        self._thread.join(timeout=2)

    def main_stack(self) -> str:
        """Python frames of the main thread, innermost last, also while it is blocked."""
        frame = sys._current_frames().get(self._main.ident or 0)
        lines = traceback.format_stack(frame) if frame is not None else []
        return "".join(lines[-12:])

    def dead_peers(self) -> set[int]:
        """Ranks of this host whose process has ended."""
        self._watch_new_peers()
        return {rank for fd, rank in self._peers.items() if _readable(fd)}

    def _run(self) -> None:
        with contextlib.suppress(Exception):
            self._loop()

    def _loop(self) -> None:
        while not self._stopped.is_set():
            why = self._signal() or self._lost_peer() or self._stuck() or self._called()
            if why and not self._stopped.is_set():
                self._on_trouble(why)
                return

    def _signal(self) -> str | None:
        time.sleep(_TICK)
        # Not ``sigtimedwait``: in a process that was halted for a moment, or that a debugger
        # looked at, it returns a signal that never came.
        pending = signal.sigpending().intersection(_SIGNALS)
        now = time.monotonic()
        if not pending:
            late = self.interrupted_at is not None and now > self.interrupted_at + 3
            return "interrupted" if late else None
        if signal.sigwait(pending) == signal.SIGTERM:
            return "told to end by its launcher (SIGTERM)"
        if self.interrupted_at is not None and now > self.interrupted_at + _SAME_PRESS:
            os._exit(130)
        self.interrupt()
        return None

    def interrupt(self) -> None:
        """The run ends at the next agreement, with its report."""
        if self.interrupted_at is None:
            self.interrupted_at = time.monotonic()
            self._on_interrupt()

    def _lost_peer(self) -> str | None:
        for rank in sorted(self.dead_peers()):
            seen = self.board.read(rank) if self.board else None
            if seen is None or seen.phase != LEFT:
                return f"rank {rank} is gone"
        return None

    def _watch_new_peers(self) -> None:
        if self.board is None or len(self._seen) == self.board.num_ranks:
            return
        for rank in range(self.board.num_ranks):
            seen = self.board.read(rank)
            if rank == self.rank:
                self._seen.add(rank)
            elif seen is not None and rank not in self._seen:
                self._seen.add(rank)
                try:
                    self._peers[os.pidfd_open(seen.pid)] = rank
                except OSError:  # gone already: an end that is always readable
                    read_end, write_end = os.pipe()
                    os.close(write_end)
                    self._peers[read_end] = rank

    def _stuck(self) -> str | None:
        seen = self.board.read(self.rank) if self.board else None
        if seen is None or seen.phase == LEFT:
            return None
        still = time.monotonic() - seen.since
        # Waits end by themselves at `timeout`; this is for code that never comes back.
        limit = self.timeout if seen.step is not None else max(self.timeout, START_TIMEOUT)
        if still > limit * 1.05 + 1:
            return f"no progress for {still:.0f} s"
        return None

    def _called(self) -> str | None:
        now = time.monotonic()
        if now < self._store_checked + _STORE_EVERY:
            return None
        self._store_checked = now
        if self.store.check(["interrupt"]):
            self.interrupt()
        return "another rank is in trouble" if self.store.check(["trouble"]) else None


def _readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))
