"""The stack of a rank that cannot say where it is, because its threads do not run Python.

A rank that holds the interpreter's lock for ever cannot answer.  faulthandler's signal
handler needs no lock; it writes into an anonymous file that a rank of the same host
opens through ``/proc``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from pathlib import Path

_SIGNAL = signal.SIGUSR1
_MOST_LINES = 40


def offer_stack() -> str:
    """From here on a signal writes this process's stacks; returns the path to read them."""
    handle = os.memfd_create("ppharness-stack")
    faulthandler.register(_SIGNAL, file=handle, all_threads=True)
    return f"/proc/{os.getpid()}/fd/{handle}"


def ask_stack(pid: int, path: str, seconds: float = 1.0) -> str:
    """Frames of a process of this host that offered them, innermost first; "" without an answer.

    Args:
        seconds: how long to wait for it; a stopped process does not answer.
    """
    text, deadline = "", time.monotonic() + seconds
    with contextlib.suppress(OSError):
        os.kill(pid, _SIGNAL)
        while time.monotonic() < deadline:
            before, text = text, Path(path).read_text(errors="replace")
            if text and text == before:  # written to its end
                break
            time.sleep(0.05)
    return "\n".join(text.splitlines()[:_MOST_LINES])
