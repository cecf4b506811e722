"""What one rank has built and posted in a step, and shows to the other ranks of its host."""

from __future__ import annotations

import time
from collections.abc import Callable

from .board import Board, Progress
from .device import DevicePlan
from .layout import Layout
from .ledger import Ledger
from .waiting import Waiting


class Posting(Waiting):
    """One rank's ledger, and a look at the other ranks' progress before it posts its part.

    A transfer that the other side will never match is so seen before it is posted.
    """

    def __init__(
        self,
        layout: Layout,
        plan: DevicePlan,
        board: Board,
        *,
        timeout: float,
        ledger: bool = True,
        perturb: int | None = None,
    ):
        super().__init__(layout, plan, board, timeout=timeout, perturb=perturb)
        self.pp_rank, self.tp_rank = divmod(layout.rank, layout.tp_size)
        self.pipeline = layout.column(self.tp_rank)  # global ranks, first stage first
        self.local = layout.local_ranks  # of this host, whose rows on the board can be read
        self.ledger = Ledger(compared=ledger)
        self.turn = 0  # of the step that runs, the same on all ranks
        self._scenario = 0
        self._num_tokens = 0

    @property
    def by_host(self) -> bool:
        """Whether CUDA tensors travel through host memory."""
        return self.plan.through_host

    def start_scenario(self) -> None:
        """A new scenario: steps count from 0 again."""
        self._scenario += 1

    def start_step(self, step: int) -> None:
        """A new step: the ledger starts afresh."""
        self.turn = (self._scenario << 24) + step
        self.ledger.start(step)
        self._num_tokens = 0

    def note_batch(self, batch: str, num_tokens: int) -> None:
        """Writes down the batch that this rank is about to run."""
        self.ledger.batch, self._num_tokens = batch, num_tokens
        self.post_progress()

    def post_progress(self, *, done: bool = False) -> None:
        """Shows the other ranks of this host what is built and posted."""
        progress = Progress(self.turn, self._num_tokens, len(self.ledger.posts), done)
        self.board.write_progress(self.rank, progress)

    def tokens_of_peer(self, distance: int) -> int | None:
        """Tokens in the batch of the stage before (-1) or after (+1), None when not known."""
        peer = self.pipeline[self.pp_rank + distance]
        if not self.ledger.compared or peer not in self.local:
            return None
        return self._watch(peer, lambda p: True, f"the batch of step {self.step} of").num_tokens

    def will_post(self, source: int, turn: int, place: int) -> bool:
        """Whether `source` posts its broadcast number `place` of a turn; may wait to see it."""
        if not self.ledger.compared or source not in self.local:
            return True
        if turn < self.turn:
            return True  # that step ended well on all ranks
        seen = self._watch(source, lambda p: p.num_posted > place or p.done, "a broadcast of")
        return seen.num_posted > place

    def _watch(self, rank: int, enough: Callable[[Progress], bool], what: str) -> Progress:
        """A rank's progress in this rank's step, once it is enough."""
        what = f"{what} {self.layout.label(rank)}"
        self._say(what)

        def there() -> Progress | None:
            seen = self.board.read_progress(rank)
            return seen if seen is not None and seen.turn == self.turn and enough(seen) else None

        seen = self._see(rank, there, what, time.monotonic() + self.timeout)
        self._say("")
        return seen

    def _peer(self, distance: int) -> str:
        return self.layout.label(self.pipeline[self.pp_rank + distance])
