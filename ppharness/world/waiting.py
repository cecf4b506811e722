"""How a rank waits for another one: the only place where ranks wait.

Every wait has a deadline and says what it is for, so that a hang can be explained.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .board import Board
from .device import DevicePlan
from .device_fault import is_device_fault, raise_if_broken
from .errors import TransportError
from .layout import Layout
from .perturb import Perturbation

T = TypeVar("T")
START_TIMEOUT = 120.0  # seconds; imports of four ranks compete for few cores
_LOOK = 0.1  # seconds between looks at the clock while a rank of this host is waited for


class Waiting:
    """One rank's place on the board, and its waits for others."""

    def __init__(
        self,
        layout: Layout,
        plan: DevicePlan,
        board: Board,
        *,
        timeout: float,
        perturb: int | None = None,
    ):
        self.layout, self.plan, self.board = layout, plan, board
        self.rank = layout.rank
        self.timeout = timeout
        self.device = torch.device("cpu")
        if plan.kind == "cuda":
            self.device = torch.device("cuda", layout.local_rank % plan.num_gpus)
        self.device_lost = False  # a device fault: nothing more runs on this rank's GPU
        self.delay = 0.0  # seconds before every wait: a slow rank, on purpose
        self.perturbation = Perturbation(perturb, layout.rank, self.device)
        self._random = random.Random(f"{perturb}/{layout.rank}") if perturb is not None else None
        self.on_move: Callable[[int | None, str], None] | None = None
        self.step: int | None = None
        self._phase = "start-up"
        self._agreeing: dist.Work | None = None  # goes over the host, on a GPU too

    def at(self, step: int | None, phase: str) -> None:
        """Says where this rank is, for whoever has to explain a hang."""
        self.step, self._phase = step, phase
        self.board.write(self.rank, step, phase)
        self.perturbation.on_main(phase)
        if self.on_move is not None:
            self.on_move(step, phase)

    def _say(self, waiting: str) -> None:
        self.board.write(self.rank, self.step, self._phase, waiting)

    def post(
        self, what: str, operation: Callable[..., dist.Work | None], *args: Any
    ) -> dist.Work | None:
        """Starts a transfer.

        Raises:
            TransportError: the connection is cut off already.
        """
        started = time.monotonic()
        try:
            return operation(*args)
        except RuntimeError as error:
            self.look_at_device(error)
            self._say(what)
            raise self._transport_error(what, started, error) from error

    def wait(self, work: dist.Work | None, what: str, *, timeout: float | None = None) -> None:
        """Until `work` is done, at most `timeout` seconds (default: the run's).

        Raises:
            TransportError: it took too long, or the other side is gone.
        """
        if work is None:  # this rank is not in the group
            return
        self._say(what)
        self._hesitate()
        started = time.monotonic()
        try:
            if self.plan.backend == "nccl" and work is not self._agreeing:
                work.wait()  # the current stream waits, not this thread
                self.look_at_device()
            else:
                work.wait(timedelta(seconds=timeout or self.timeout))
        except RuntimeError as error:
            self.look_at_device(error)
            raise self._transport_error(what, started, error) from error
        self._say("")

    def look_at_device(self, error: RuntimeError | None = None) -> None:
        """Raises a fault of this rank's GPU; NCCL may have said it in words of its own."""
        if error is not None and is_device_fault(error):
            raise error
        if not self.device_lost:  # that is known already
            raise_if_broken(self.device)

    def _hesitate(self) -> None:
        """Delays on purpose: a slowed rank, or random ones that shift ranks against each other."""
        if self.delay:
            time.sleep(self.delay)
        if self._random is not None and self.device.type == "cpu":
            time.sleep(self._random.uniform(0, 0.002))

    def _see(self, rank: int, there: Callable[[], T | None], what: str, deadline: float) -> T:
        """What a rank of this host has written on the board, once it is there."""
        bell = self.board.bells[rank]
        while True:
            rings = bell.count
            seen = there()
            if seen is not None:
                return seen
            if time.monotonic() > deadline:
                raise TransportError(what, timed_out=True, detail="seen on the board")
            bell.wait(rings, _LOOK)

    def _transport_error(self, what: str, started: float, error: Exception) -> TransportError:
        timed_out = time.monotonic() - started >= 0.95 * self.timeout
        detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return TransportError(what, timed_out=timed_out, detail=detail)
