"""One rank's connection to all others: the only place where ranks wait.

Every wait has a deadline and says what it is for, so that a hang can be explained.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .board import Board
from .device import DevicePlan
from .errors import TransportError, WorldError


@dataclass(frozen=True)
class Layout:
    """How ranks are laid out: rank = pp_rank * tp_size + tp_rank."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    tp_size: int

    @classmethod
    def from_environment(cls, tp_size: int) -> Layout:
        """As torchrun (or our own launcher) set it.

        Raises:
            WorldError: the world size is no multiple of `tp_size`, or not launched at all.
        """
        try:
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        except KeyError as missing:
            raise WorldError(
                f"{missing.args[0]} is not set: start ranks with "
                "`torchrun --nproc-per-node 4 -m ppharness` or `ppharness run --nproc 4`"
            ) from None
        if size % tp_size:
            raise WorldError(
                f"--tp {tp_size}: found {size} ranks, allowed: a multiple of {tp_size}"
            )
        local = int(os.environ.get("LOCAL_RANK", rank))
        return cls(rank, size, local, int(os.environ.get("LOCAL_WORLD_SIZE", size)), tp_size)

    @property
    def pp_size(self) -> int:
        return self.world_size // self.tp_size

    def label(self, rank: int) -> str:
        pp, tp = divmod(rank, self.tp_size)
        return f"PP{pp}" if self.tp_size == 1 else f"PP{pp}_TP{tp}"

    def column(self, tp_rank: int) -> list[int]:
        """Global ranks of one pipeline, first stage first."""
        return list(range(tp_rank, self.world_size, self.tp_size))


class World:
    """Groups, hidden states, the relay's channel and the agreement at a step's end."""

    transport_errors: tuple[type[Exception], ...] = (TransportError,)

    def __init__(
        self, layout: Layout, plan: DevicePlan, store: dist.Store, board: Board, timeout: float
    ):
        self.layout, self.plan, self.store, self.board = layout, plan, store, board
        self.rank, self.world_size = layout.rank, layout.world_size
        self.pp_rank, self.tp_rank = divmod(layout.rank, layout.tp_size)
        self.pp_size, self.tp_size = layout.pp_size, layout.tp_size
        self.label = layout.label(layout.rank)
        self.timeout = timeout
        self.interrupted = False
        self.device = torch.device("cpu")
        if plan.kind == "cuda":
            self.device = torch.device("cuda", layout.local_rank % plan.num_gpus)
            torch.cuda.set_device(self.device)
        self._step: int | None = None
        self._phase = "start-up"
        self._sending: dist.Work | None = None
        self._connect()

    def _connect(self) -> None:
        """Makes all groups; every rank makes them in the same order."""
        self.at(None, "start-up")
        limit = timedelta(seconds=self.timeout)
        self._say("all ranks to join")
        dist.init_process_group(
            "gloo", store=self.store, rank=self.rank, world_size=self.world_size, timeout=limit
        )
        self.control = dist.group.WORLD
        for tp_rank in range(self.tp_size):
            column = self.layout.column(tp_rank)
            hidden = dist.new_group(column, backend=self.plan.backend, timeout=limit)
            relay = dist.new_group(column, backend=self.plan.backend, timeout=limit)
            if tp_rank == self.tp_rank:
                self.pipeline, self.hidden_group = column, hidden
                self.relay_channel = RelayChannel(self, relay, column[-1])
        self.at(None, "ready")

    def at(self, step: int | None, phase: str) -> None:
        """Says where this rank is, for whoever has to explain a hang."""
        self._step, self._phase = step, phase
        self.board.write(self.rank, step, phase)

    def send_hidden(self, hidden: torch.Tensor) -> None:
        """To the next stage, without waiting for it to take them."""
        if self._sending is not None:
            self.wait(self._sending, f"{self._peer(1)} to take hidden states")
        self._kept = hidden
        self._sending = dist.isend(hidden, self.pipeline[self.pp_rank + 1], self.hidden_group)

    def recv_hidden(self, hidden: torch.Tensor) -> None:
        """From the stage before, into `hidden`."""
        work = dist.irecv(hidden, self.pipeline[self.pp_rank - 1], self.hidden_group)
        self.wait(work, f"hidden states of step {self._step} from {self._peer(-1)}")

    def agree(self, failed: bool) -> bool:
        """All ranks learn, at the end of a step, whether any wants to stop."""
        flags = torch.tensor([int(failed), int(self.interrupted)])
        work = dist.all_reduce(flags, dist.ReduceOp.MAX, self.control, async_op=True)
        self.wait(work, f"all ranks at the end of step {self._step}")
        self.interrupted = bool(flags[1])
        return bool(flags.any())

    def gather(self, value: Any) -> list[Any]:
        """Everybody's `value`, in rank order, on every rank."""
        values: list[Any] = [None] * self.world_size
        self._say("all ranks' results")
        started = time.monotonic()
        try:
            dist.all_gather_object(values, value, self.control)
        except RuntimeError as error:
            raise self._transport_error("all ranks' results", started, error) from error
        self._say("")
        return values

    def wait(self, work: dist.Work | None, what: str) -> None:
        """Until `work` is done, at most `timeout` seconds.

        Raises:
            TransportError: it took too long, or the other side is gone.
        """
        if work is None:  # this rank is not in the group
            return
        self._say(what)
        started = time.monotonic()
        try:
            work.wait(timedelta(seconds=self.timeout))
        except RuntimeError as error:
            raise self._transport_error(what, started, error) from error
        self._say("")

    def close(self) -> None:
        """Leaves all groups."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _say(self, waiting: str) -> None:
        self.board.write(self.rank, self._step, self._phase, waiting)

    def _peer(self, distance: int) -> str:
        return self.layout.label(self.pipeline[self.pp_rank + distance])

    def _transport_error(self, what: str, started: float, error: Exception) -> TransportError:
        timed_out = time.monotonic() - started >= 0.95 * self.timeout
        detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return TransportError(what, timed_out=timed_out, detail=detail)


class RelayChannel:
    """The communicator of the sampled tokens of one pipeline."""

    def __init__(self, world: World, group: dist.ProcessGroup, last_rank: int):
        self.group = group
        self.last_rank = last_rank
        self.num_posted = 0  # in this step
        self._world = world
        self._step = 0
        self._pending: list[PendingBroadcast] = []

    def start_step(self, step: int) -> None:
        """A new step: what it posts is counted afresh."""
        self._step, self.num_posted = step, 0

    def broadcast(self, tensor: torch.Tensor, what: str) -> PendingBroadcast:
        """From the last rank into everybody's `tensor`; returns at once."""
        self.num_posted += 1
        work = dist.broadcast(tensor, self.last_rank, self.group, async_op=True)
        source = self._world.layout.label(self.last_rank)
        text = f"{what} of step {self._step} from {source}"
        if self._world.rank == self.last_rank:
            text = f"all ranks to take {what} of step {self._step}"
        pending = PendingBroadcast(self._world, work, tensor, text)
        self._pending = [p for p in self._pending if not p.done][-64:] + [pending]
        return pending

    def finish(self) -> None:
        """Waits for everything posted, so that the next scenario starts clean."""
        for pending in self._pending:
            pending.wait()
        self._pending.clear()


class PendingBroadcast:
    """A broadcast on its way; keeps its tensor alive."""

    def __init__(self, world: World, work: dist.Work, tensor: torch.Tensor, what: str):
        self.done = False
        self._world, self._work, self._tensor, self._what = world, work, tensor, what

    def wait(self) -> None:
        """Until the data is there; on CUDA the current stream waits, not the thread."""
        if not self.done:
            self._world.wait(self._work, self._what)
            self.done = True
