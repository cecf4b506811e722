"""The communicator of the sampled tokens of one pipeline, apart from the hidden states'."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from . import gpu_sharing
from .errors import NotPosted
from .ledger import Ledger, Post
from .posting import Posting

_KEEP = 64  # finished broadcasts whose handles are kept at most


class RelayChannel:
    """Broadcasts from the last stage, each written into the ledger before it is posted."""

    def __init__(self, world: Posting, group: dist.ProcessGroup, last_rank: int):
        self.group = group
        self.last_rank = last_rank
        self.skips: Callable[[], bool] = lambda: False  # posts are left out: a fault on purpose
        self._world = world
        self._pending: list[PendingBroadcast] = []

    def broadcast(self, tensor: torch.Tensor, what: str) -> PendingBroadcast:
        """From the last rank into everybody's `tensor`; returns at once."""
        world, ledger = self._world, self._world.ledger
        if self.skips():
            return PendingBroadcast(world, None, tensor, what, self.last_rank, 0)
        place, step = len(ledger.posts), ledger.step or 0
        dtype = str(tensor.dtype).removeprefix("torch.")
        ledger.posts.append(Post(what, dtype, tuple(tensor.shape)))
        world.post_progress()
        world.perturbation.on_broadcast()
        source = world.layout.label(self.last_rank)
        text = f"{what} of step {step} from {source}"
        if world.rank == self.last_rank:
            text = f"all ranks to take {what} of step {step}"
        work = world.post(
            text, gpu_sharing.broadcast, tensor, self.last_rank, self.group, world.by_host
        )
        pending = PendingBroadcast(world, work, tensor, text, self.last_rank, place)
        self._pending = [p for p in self._pending if not p.done][-_KEEP:] + [pending]
        return pending

    def settle(self, ledgers: list[Ledger]) -> bool:
        """Posts what this rank left out and others did not; False where that cannot help.

        Args:
            ledgers: one step's ledgers of all stages of this pipeline.
        """
        if len({ledger.batch for ledger in ledgers}) > 1:
            return False
        self.skips = lambda: False
        for place in range(max(len(ledger.posts) for ledger in ledgers)):
            posts = [x.posts[place] for x in ledgers if place < len(x.posts)]
            if len({(p.dtype, p.shape) for p in posts}) > 1:
                return False
            if place >= len(self._world.ledger.posts):
                post = posts[0]
                dtype = getattr(torch, post.dtype)
                stand_in = torch.zeros(post.shape, dtype=dtype, device=self._world.device)
                self.broadcast(stand_in, f"{post.what} (in place of the target)")
        return True

    def finish(self) -> None:
        """Waits for everything posted, once all ranks have agreed that it is."""
        for pending in self._pending:
            pending.wait(agreed=True)
        self._pending.clear()


class PendingBroadcast:
    """A broadcast on its way; keeps its tensor alive."""

    def __init__(
        self,
        world: Posting,
        work: dist.Work | None,
        tensor: torch.Tensor,
        what: str,
        source: int,
        place: int,
    ):
        self.done = work is None
        self._world, self._work, self._tensor, self._what = world, work, tensor, what
        self._source, self._turn, self._place = source, world.turn, place

    def wait(self, *, agreed: bool = False) -> None:
        """Until the data is there; on CUDA the current stream waits, not the thread.

        Args:
            agreed: the last rank is known to have posted it.

        Raises:
            NotPosted: the last rank ended the step without posting it.
            TransportError: it did not come in time, or the other side is gone.
        """
        if self.done:
            return
        world, source = self._world, self._source
        waits = world.plan.backend != "nccl"  # else the stream does, and the ledger tells
        known = agreed or not waits or world.rank == source
        if not known and not world.will_post(source, self._turn, self._place):
            raise NotPosted(self._what, timed_out=False, detail="it was never posted")
        world.wait(self._work, self._what)
        self.done = True
        if not waits:  # the stream waits: to keep the memory until then is up to the target
            self._work = self._tensor = None  # type: ignore[assignment]
            world.perturbation.on_broadcast()
