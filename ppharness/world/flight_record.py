"""NCCL's own record of the last collectives, kept for whoever explains a hang.

torch keeps it in a ring in each process; ``torchfrtrace -p PREFIX`` reads the files.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import torch

_ENTRIES = "2000"  # collectives that are remembered
_SECONDS = 3.0  # that a dump may take


def remember_collectives() -> None:
    """Turns the recorder on, before a communicator is made, where the user has not set it."""
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):  # new name, old name
        os.environ.setdefault(name, _ENTRIES)


def record_prefix(report: str) -> str:
    """What the files of one run are called beside its report, before the rank's number."""
    return f"{report}.nccl_trace_rank_"


def save_flight_record(report: str, rank: int) -> None:
    """Writes this rank's record beside the report; a broken NCCL cannot hold it up for long."""
    writer = threading.Thread(target=_save, args=(record_prefix(report), rank), daemon=True)
    writer.start()
    writer.join(_SECONDS)


def _save(prefix: str, rank: int) -> None:
    dump = getattr(torch._C._distributed_c10d, "_dump_nccl_trace", None)
    if dump is None:  # torch without NCCL
        return
    with contextlib.suppress(OSError, RuntimeError):
        content: bytes = dump()
        part = Path(f"{prefix}{rank}.{os.getpid()}")
        part.write_bytes(content)
        part.replace(f"{prefix}{rank}")
