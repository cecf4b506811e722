"""How ranks are laid out over stages, tensor parallelism and hosts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..findings import rank_label
from .errors import WorldError


@dataclass(frozen=True)
class Layout:
    """rank = pp_rank * tp_size + tp_rank."""

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

    @property
    def local_ranks(self) -> frozenset[int]:
        """Global ranks of this host; launchers number them one after the other."""
        first = self.rank - self.local_rank
        return frozenset(range(first, first + self.local_world_size))

    def label(self, rank: int) -> str:
        pp, tp = divmod(rank, self.tp_size)
        return rank_label(pp, tp, self.tp_size)

    def column(self, tp_rank: int) -> list[int]:
        """Global ranks of one pipeline, first stage first."""
        return list(range(tp_rank, self.world_size, self.tp_size))
