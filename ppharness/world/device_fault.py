"""A GPU that broke: from then on every call to it fails in this process.

Nothing on it may be freed any more: the allocator makes an event for memory that several
streams used, which fails where no exception can be raised, and the process ends.
"""

from __future__ import annotations

import traceback
from functools import cache
from typing import Any

import torch

from .errors import text_of

_KEPT: list[Any] = []  # of a process whose device is broken


def is_device_fault(error: BaseException) -> bool:
    """An error of the CUDA device."""
    return isinstance(error, RuntimeError) and "CUDA error" in text_of(error)


def raise_if_broken(device: torch.device) -> None:
    """Raises a fault of the GPU; to be called before memory goes that several streams used.

    It makes an event too, since that waits while the driver deals with a fault.
    """
    if device.type == "cuda":
        _stream_of(device).record_event()


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """Any stream will do; to look up the current one costs as much as all the rest."""
    return torch.cuda.default_stream(device)


def keep_for_ever(held: Any) -> None:
    """What this holds on a device that may be broken is not freed."""
    _KEPT.append(held)


def keep_frames_of(error: BaseException) -> None:
    """What the frames of a device fault hold is not freed."""
    frames = [f for f, _ in traceback.walk_tb(error.__traceback__)]
    frames += [f for f, _ in traceback.walk_stack(None)]
    keep_for_ever((error, [dict(f.f_locals) for f in frames]))
