"""What the operating system keeps for the processes of one host."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import time

_PR_SET_PDEATHSIG = 1
_HEARD = 1.0  # seconds that a rank stays after an error, for the one that says it


def die_with_parent(by: int = signal.SIGKILL) -> None:
    """This process gets a signal when the one that started it ends, however it ends (Linux)."""
    started_by = multiprocessing.parent_process()  # None for what multiprocessing did not start
    parent = os.getppid() if started_by is None else started_by.pid
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def say(error: str) -> None:
    """An error meant for the user, on stderr."""
    with contextlib.suppress(OSError):  # where nobody reads it, there is nobody to tell
        for line in error.splitlines():
            sys.stderr.write(f"ppharness: error: {line}\n")
        sys.stderr.flush()


def say_once(error: str) -> None:
    """An error that every rank runs into: the first one of this host says it.

    torchrun ends all others once one has left, so nobody leaves before it is said.  Who is
    first is settled by a name in the kernel, which goes with the process.
    """
    if "RANK" not in os.environ:
        say(error)
        return
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with socket.socket(socket.AF_UNIX) as place:
        try:
            place.bind(f"\0ppharness/{os.getppid()}/{os.environ.get('MASTER_PORT')}/{attempt}")
        except OSError:
            pass  # another rank is at it
        else:
            say(error)
        time.sleep(_HEARD)
