"""Where every rank was last seen, by the boards of all hosts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from .trouble import Note, Seen
from .world.board import Board
from .world.layout import Layout
from .world.stacks import ask_stack


class RollCall:
    """What one rank can tell of the others when a run is in trouble."""

    def __init__(self, layout: Layout, store: Any, board: Board | None, dead: set[int]):
        self.layout, self.store, self.board = layout, store, board
        self.dead = dead  # ranks of this host whose process has ended

    def seen(self, rank: int) -> Seen | None:
        """Where a rank of this host is, None for one that was never here."""
        at = self.board.read(rank) if self.board else None
        if at is None:
            return None
        still = time.monotonic() - at.since
        return Seen(at.step, at.phase, at.waiting, still, alive=rank not in self.dead)

    def own(self) -> Seen:
        """Where the asking rank is."""
        return self.seen(self.layout.rank) or Seen(None, "", "", 0.0, alive=True)

    def peers(self) -> dict[str, dict[str, Any]]:
        """The other ranks of this host, for a reporter on another one."""
        others = self.layout.local_ranks - {self.layout.rank}
        found = {rank: self.seen(rank) for rank in sorted(others)}
        return {str(rank): asdict(seen) for rank, seen in found.items() if seen}

    def note_of_silent(self, rank: int, scenario: int, notes: Iterable[Note]) -> Note:
        """Of a rank that does not answer: what the board says, here or on its own host."""
        seen = self.seen(rank)
        stack = self._stack(rank) if seen is not None and seen.alive else ""
        if seen is None:
            told = [note.peers[str(rank)] for note in notes if str(rank) in note.peers]
            seen = Seen(**told[0]) if told else Seen(None, "", "", 0.0, alive=False)
        return Note(
            **asdict(seen),
            rank=rank,
            label=self.layout.label(rank),
            why="",
            scenario=scenario,
            answered=False,
            stack=stack,
        )

    def _stack(self, rank: int) -> str:
        at = self.board.read(rank) if self.board else None
        if at is None or not self.store.check([f"stack/{rank}"]):
            return ""
        return ask_stack(at.pid, self.store.get(f"stack/{rank}").decode())
