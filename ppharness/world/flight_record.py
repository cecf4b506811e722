"""torch's own record of the last collectives, kept for whoever explains a hang.

torch keeps it in a ring in each process; ``torchfrtrace -p PREFIX`` reads the files.  It
is turned on for NCCL; for gloo the user can set ``TORCH_FR_BUFFER_SIZE``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import torch

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

    A communicator that is broken cannot hold it up for long.
    """
    writer = threading.Thread(target=_save, args=(record_prefix(report), rank), daemon=True)
    writer.start()
    writer.join(_SECONDS)
    return Path(f"{record_prefix(report)}{rank}").exists()


def _save(prefix: str, rank: int) -> None:
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):  # the second one of any backend
        dump = getattr(_recorder, name, None)
        if dump is None:
            continue
        with contextlib.suppress(OSError, RuntimeError, pickle.UnpicklingError):
            content: bytes = dump()
            if not pickle.loads(content).get("entries"):
                continue
            part = Path(f"{prefix}{rank}.{os.getpid()}")
            part.write_bytes(content)
            part.replace(f"{prefix}{rank}")
            return
