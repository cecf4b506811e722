"""What a release needs in place of CUDA streams, events and pinned memory on a CPU.

Every release from 0.24.0 on has stand-ins of its own for its CPU worker
(`vllm/v1/worker/cpu/shm.py`, applied by importing it); they are taken first.  Up to
some release they lack what the pipeline code calls, and that alone is added here.
Installed only where no GPU is used, and never by another target.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import torch


class CpuEvent:
    """On a CPU all that was posted before has run: nothing to record or wait for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, *args: Any) -> None:
        pass

    def wait(self, *args: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class CpuStream(contextlib.AbstractContextManager["CpuStream", None]):
    """The only stream of a CPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cpu")

    def __exit__(self, *args: object) -> None:
        pass

    def wait_stream(self, *args: Any) -> None:
        pass

    def wait_event(self, *args: Any) -> None:
        pass

    def record_event(self, *args: Any) -> CpuEvent:
        return CpuEvent()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


_STREAM_METHODS = ("wait_stream", "wait_event", "record_event", "synchronize")


def install() -> None:
    """Before the release's model runner modules are imported: they copy some of these names."""
    _use_cpu_platform()
    # A release that ships none, or whose own do not import, gets ours throughout.
    with contextlib.suppress(ImportError):
        importlib.import_module("vllm.v1.worker.cpu.shm")
    patch = _Patch()
    if not _is_usable(torch.cuda.Stream):
        patch.set(torch.cuda, "Stream", CpuStream)
        patch.set(torch.cuda, "current_stream", lambda *args, **kwargs: CpuStream())
    if torch.cuda.stream.__module__.startswith("torch"):
        patch.set(torch.cuda, "stream", lambda *args, **kwargs: CpuStream())
    if torch.cuda.Event.__module__.startswith("torch"):
        patch.set(torch.cuda, "Event", CpuEvent)
    if not _runs(lambda: torch.zeros(1).record_stream(torch.cuda.current_stream())):
        patch.set(torch.Tensor, "record_stream", lambda self, *args: None)
    if not _runs(lambda: torch.zeros(1).pin_memory()):
        patch.set(torch.Tensor, "pin_memory", lambda self, *args, **kwargs: self)


class _Patch:
    """Keeps mypy from checking names that are replaced on purpose."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)


def _use_cpu_platform() -> None:
    """vLLM finds no platform where neither a GPU nor a CPU build is there: name the CPU's."""
    platforms: Any = importlib.import_module("vllm.platforms")
    if platforms.current_platform.is_cpu():
        return
    with contextlib.suppress(ImportError):
        cpu: Any = importlib.import_module("vllm.platforms.cpu")
        platforms._current_platform = cpu.CpuPlatform()


def _is_usable(stream_class: Any) -> bool:
    if stream_class.__module__.startswith("torch"):
        return False
    stream = stream_class()
    return all(hasattr(stream, name) for name in _STREAM_METHODS)


def _runs(call: Any) -> bool:
    try:
        call()
    except (RuntimeError, TypeError, AssertionError):
        return False
    return True
