"""What the operating system keeps for the processes of one host."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import time

_PR_SET_PDEATHSIG = 1
_HEARD = 1.0  # seconds that a rank stays after an error, for the one that says it


def die_with_parent() -> None:
    """This process is killed when the one that started it ends, however it ends (Linux)."""
    started_by = multiprocessing.parent_process()  # None under torchrun
    parent = os.getppid() if started_by is None else started_by.pid
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def say_once(error: str) -> None:
    """Writes an error that every rank runs into: the first one of this host says it.

    torchrun ends all others once one has left, so nobody leaves before it is said.  Who is
    first is settled by a name in the kernel, which goes with the process.
    """
    place = socket.socket(socket.AF_UNIX)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        if "RANK" in os.environ:
            place.bind(f"\0ppharness/{os.getppid()}/{os.environ.get('MASTER_PORT')}/{attempt}")
        for line in error.splitlines():
            sys.stderr.write(f"ppharness: error: {line}\n")
        sys.stderr.flush()
    except OSError:  # another rank is at it
        pass
    if "RANK" in os.environ:
        time.sleep(_HEARD)
    place.close()
