"""torch's own record of the last collectives, kept for whoever explains a hang.

torch keeps it in a ring in each process; ``torchfrtrace -p PREFIX`` reads the files.  It
is turned on for NCCL; for gloo the user can set ``TORCH_FR_BUFFER_SIZE``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from typing import Any

import torch

from ..atomic_file import write_atomically

_ENTRIES = "2000"  # collectives that are remembered
_SECONDS = 3.0  # that a dump may take
_recorder: Any = torch._C._distributed_c10d


def remember_collectives() -> None:
    """Turns the recorder on, before a communicator is made, where the user has not set it."""
    new = hasattr(_recorder, "_dump_fr_trace")
    os.environ.setdefault(
        "TORCH_FR_BUFFER_SIZE" if new else "TORCH_NCCL_TRACE_BUFFER_SIZE", _ENTRIES
    )


def record_prefix(report: str) -> str:
    """What the files of one run are called beside its report, before the rank's number."""
    return f"{report}.flight_record_rank_"


def save_flight_record(report: str, rank: int) -> bool:
    """Writes what this rank remembers beside the report; False where that is nothing.

    With the stacks where they can be looked up in time: torch imports much for it.  A
    communicator that is broken cannot hold it up for long either.
    """
    dumps: list[bytes] = []
    reader = threading.Thread(target=_read, args=(dumps,), daemon=True)
    reader.start()
    reader.join(_SECONDS)
    if not dumps:
        return False
    try:
        write_atomically(f"{record_prefix(report)}{rank}", dumps[-1])
    except OSError:  # as for the report, which says so
        return False
    return True


def _read(dumps: list[bytes]) -> None:
    for stacks in (False, True):
        with contextlib.suppress(Exception):  # beside the report, whatever becomes of it
            if content := _dump(stacks):
                dumps.append(content)


def _dump(stacks: bool) -> bytes | None:
    """torch's pickle of what was recorded, of NCCL or else of any backend."""
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        dump = getattr(_recorder, name, None)
        content: bytes = dump(includeStackTraces=stacks) if dump is not None else b""
        if content and pickle.loads(content).get("entries"):
            return content
    return None
