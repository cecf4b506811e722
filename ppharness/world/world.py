"""One rank's connection to all others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from . import gpu_sharing
from .board import Board, Flags
from .device import DevicePlan
from .layout import Layout
from .posting import Posting
from .relay_channel import RelayChannel
from .waiting import START_TIMEOUT


@dataclass(frozen=True)
class Agreement:
    """What all ranks know at the end of a step."""

    stop: bool  # a rank's target failed, or the run was interrupted
    device_lost: bool  # a rank's GPU takes no more work after a device fault
    same: bool  # all ranks built and posted the same


class World(Posting):
    """Groups, hidden states, the relay's channel and the agreement at a step's end."""

    def __init__(
        self,
        layout: Layout,
        plan: DevicePlan,
        store: dist.Store,
        board: Board,
        *,
        timeout: float,
        ledger: bool = True,
        perturb: int | None = None,
    ):
        super().__init__(layout, plan, board, timeout=timeout, ledger=ledger, perturb=perturb)
        self.store = store
        self.world_size = layout.world_size
        self.pp_size, self.tp_size = layout.pp_size, layout.tp_size
        self.label = layout.label(layout.rank)
        self.start_timeout = max(timeout, START_TIMEOUT)
        self.interrupted = False
        if plan.kind == "cuda":
            gpu_sharing.prepare_nccl(plan, layout)
            torch.cuda.set_device(self.device)
        self._votes = 0
        self._sending: dist.Work | None = None
        self._kept: torch.Tensor | None = None  # what is being sent
        self._connect()

    def _connect(self) -> None:
        """Joins all ranks and makes the groups."""
        self.at(None, "start-up")
        self._say("all ranks to join")
        dist.init_process_group(
            "gloo", store=self.store, rank=self.rank, world_size=self.world_size,
            timeout=timedelta(seconds=self.start_timeout),
        )  # fmt: skip
        self.control = dist.group.WORLD
        self.make_groups()
        if self.device.type == "cuda":
            self._warm_up()
        self.at(None, "ready")

    def _warm_up(self) -> None:
        """The first transfers over NCCL; where it does not work, over gloo from here on."""
        self._say("communicators of all ranks")
        reason = gpu_sharing.warm_up(
            self.pipeline, self.hidden_group, self.relay_channel.group, self.device
        )
        reasons = [r for r in self.gather(reason) if r]
        if reasons:
            self.plan = gpu_sharing.through_host(self.plan, reasons[0])
            self.make_groups()

    def make_groups(self) -> None:
        """Communicators of hidden states and of the relay; all ranks call this together.

        Called again where a step left transfers that will never be matched.
        """
        limit = timedelta(seconds=self.timeout)
        if self.plan.backend == "nccl":  # its waits are the device's; see `Watch`
            limit = timedelta(seconds=2 * self.timeout + 30)
        gpu_sharing.abort(getattr(self, "hidden_group", None), self.plan)
        gpu_sharing.abort(getattr(self, "relay_channel", None), self.plan)
        for tp_rank in range(self.tp_size):
            column = self.layout.column(tp_rank)
            hidden = dist.new_group(column, backend=self.plan.backend, timeout=limit)
            relay = dist.new_group(column, backend=self.plan.backend, timeout=limit)
            if tp_rank == self.tp_rank:
                self.hidden_group = hidden
                self.relay_channel = RelayChannel(self, relay, column[-1])
        self._sending = None

    def send_hidden(self, hidden: torch.Tensor) -> None:
        """To the next stage, without waiting for it to take them."""
        what = f"{self._peer(1)} to take hidden states"
        if self._sending is not None:
            self.wait(self._sending, what)
        self._sending = self._kept = None  # gone at once: see `look_at_device`
        peer = self.pipeline[self.pp_rank + 1]
        self._sending = self.post(
            what, gpu_sharing.isend, hidden, peer, self.hidden_group, self.by_host
        )
        self._kept = hidden

    def recv_hidden(self, hidden: torch.Tensor) -> None:
        """From the stage before, into `hidden`."""
        what = f"hidden states of step {self.step} from {self._peer(-1)}"
        peer = self.pipeline[self.pp_rank - 1]
        work = self.post(what, gpu_sharing.irecv, hidden, peer, self.hidden_group, self.by_host)
        self.wait(work, what)

    def meet(self) -> None:
        """All ranks are ready; some may have had much to import."""
        ready = torch.zeros(1)
        what = "all ranks to be ready"
        work = self.post(what, dist.all_reduce, ready, dist.ReduceOp.MAX, self.control, True)
        self._agreeing = work
        self.wait(work, what, timeout=self.start_timeout)

    def agree(self, failed: bool, meanwhile: Callable[[], None] | None = None) -> Agreement:
        """All ranks learn, at the end of a step, how it went everywhere.

        Args:
            meanwhile: what this rank does once the others know of it, before it waits.
        """
        self.post_progress(done=True)
        mine = (
            2 if self.device_lost else int(failed), int(self.interrupted), self.ledger.checksum
        )  # fmt: skip
        what = f"all ranks at the end of step {self.step}"
        one_host = len(self.local) == self.world_size
        count = (self._vote_on_board if one_host else self._vote_over_network)(mine, what)
        if meanwhile is not None:
            meanwhile()
        votes = count()
        any_failed = max(failed for failed, _, _ in votes)
        self.interrupted = any(interrupted for _, interrupted, _ in votes)
        self.device_lost = any_failed > 1  # on one rank: it cannot go on on any
        same = len({checksum for _, _, checksum in votes}) == 1
        stop = bool(any_failed or self.interrupted)
        return Agreement(stop=stop, device_lost=self.device_lost, same=same)

    def _vote_on_board(self, mine: Flags, what: str) -> Callable[[], list[Flags]]:
        """All ranks of one host, in shared memory: no message, no round trip."""
        self._votes += 1
        self.board.vote(self.rank, self._votes, mine)

        def count() -> list[Flags]:
            self._say(what)
            self._hesitate()
            deadline = time.monotonic() + self.timeout
            votes = [  # the last stage first: once it is done, most others are
                self._see(rank, partial(self.board.read_vote, rank, self._votes), what, deadline)
                for rank in reversed(range(self.world_size))
            ]
            self._say("")
            return votes

        return count

    def _vote_over_network(self, mine: Flags, what: str) -> Callable[[], list[Flags]]:
        """Ranks of several hosts; two votes stand for all: the largest and the least."""
        failed, interrupted, checksum = mine
        flags = torch.tensor([failed, interrupted, checksum, -checksum])
        work = self.post(what, dist.all_reduce, flags, dist.ReduceOp.MAX, self.control, True)
        self._agreeing = work

        def count() -> list[Flags]:
            self.wait(work, what)
            failed, interrupted, most, least = flags.tolist()
            return [(failed, interrupted, most), (failed, interrupted, -least)]

        return count

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

    def close(self) -> None:
        """Leaves all groups."""
        if dist.is_initialized() and not self.device_lost:
            dist.destroy_process_group()
