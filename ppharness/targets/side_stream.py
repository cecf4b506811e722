"""A side stream with an event for what ran on it; on a CPU, plain pending work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from .interface import PendingBroadcast


class Arrival:
    """Data that will be there: waited for where it is first used."""

    def __init__(self, pending: Sequence[PendingBroadcast], event: torch.cuda.Event | None):
        self._pending = pending
        self._event = event

    def wait(self) -> None:
        """On CUDA the current stream waits for the side stream; on a CPU the thread waits."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)
        else:
            for work in self._pending:
                work.wait()


class SideStream:
    """Runs communication beside the main stream."""

    def __init__(self, device: torch.device):
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def after_main(self) -> Iterator[None]:
        """Within it, work goes to the side stream, after all that the main stream holds now."""
        if self._stream is None:
            yield
            return
        main = torch.cuda.current_stream()
        with torch.cuda.stream(self._stream):
            self._stream.wait_stream(main)
            yield

    def arrival(self, pending: Sequence[PendingBroadcast]) -> Arrival:
        """Marks the point after `pending`; called within `after_main`."""
        if self._stream is None:
            return Arrival(pending, None)
        for work in pending:
            work.wait()  # the side stream waits, not the thread
        return Arrival((), self._stream.record_event())

    def keep(self, *tensors: torch.Tensor) -> None:
        """The allocator must not reuse these before the side stream is done with them."""
        if self._stream is not None:
            for tensor in tensors:
                tensor.record_stream(self._stream)
