"""A board in shared memory: where every rank of one host is, readable by the others.

The memory is anonymous (a memfd that one rank makes and the others open through
``/proc``), so nothing is left behind however the processes end.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass

from .bell import Bell

_ROW = struct.Struct("<qqd32s160s")  # pid, step, since, phase, waiting
_TURN = struct.Struct("<q")
_LEDGER = struct.Struct("<qq?")  # tokens of the batch, posts, whether the step is done
_WRITING = -1
_LEDGER_AT = 224
_VOTE = struct.Struct("<qqq")  # failed, interrupted, checksum
_VOTE_AT = 256  # two votes: a rank that is ahead writes the next one while others read
_VOTE_BYTES = 32
_BELL_AT = 320  # rung at each progress and each vote
_ROW_BYTES = 384
_NO_STEP = -1

Flags = tuple[int, int, int]  # failed (2: the device is lost), interrupted, checksum


@dataclass(frozen=True)
class Position:
    """Where a rank was last seen."""

    pid: int
    step: int | None
    phase: str
    waiting: str  # "" while it runs, else what it waits for
    since: float  # time.monotonic() of the last change

    @property
    def text(self) -> str:
        place = self.phase or "start-up"
        if self.step is not None:
            place = f"step {self.step}, {place}"
        return f"{place}: waits for {self.waiting}" if self.waiting else place


@dataclass(frozen=True)
class Progress:
    """What a rank has built and posted in its current step."""

    turn: int  # counts scenarios and steps, so that no two steps of a run are the same
    num_tokens: int
    num_posted: int
    done: bool


class Board:
    """One row a rank; a rank writes its own row only."""

    def __init__(self, memory: mmap.mmap, num_ranks: int, handle: int | None = None):
        self._memory = memory
        self._handle = handle  # of the process that made it, kept open for the others
        self.num_ranks = num_ranks
        self.bells = [Bell(memory, rank * _ROW_BYTES + _BELL_AT) for rank in range(num_ranks)]

    @classmethod
    def create(cls, num_ranks: int) -> tuple[Board, str]:
        """A new board and the path by which other processes open it while this one lives."""
        size = max(num_ranks, 1) * _ROW_BYTES
        handle = os.memfd_create("ppharness-board")
        os.ftruncate(handle, size)
        board = cls(mmap.mmap(handle, size), num_ranks, handle)
        return board, f"/proc/{os.getpid()}/fd/{handle}"

    @classmethod
    def open(cls, path: str, num_ranks: int) -> Board:
        """The board that another process made."""
        handle = os.open(path, os.O_RDWR)
        try:
            return cls(mmap.mmap(handle, max(num_ranks, 1) * _ROW_BYTES), num_ranks)
        finally:
            os.close(handle)

    def close(self) -> None:
        """Gives the memory back; no rank uses it any more."""
        self.bells.clear()  # they hold on to the memory
        self._memory.close()
        if self._handle is not None:
            os.close(self._handle)

    def write(self, rank: int, step: int | None, phase: str, waiting: str = "") -> None:
        """Says where this rank is; called before it goes on or waits."""
        row = _ROW.pack(
            os.getpid(), _NO_STEP if step is None else step, time.monotonic(),
            phase.encode()[:32], waiting.encode()[:160],
        )  # fmt: skip
        self._put(rank * _ROW_BYTES, row)

    def write_progress(self, rank: int, progress: Progress) -> None:
        """Says what this rank has built and posted.

        Another process may read at any moment, so the turn is taken away first and
        written last.
        """
        place = rank * _ROW_BYTES + _LEDGER_AT
        self._put(place, _TURN.pack(_WRITING))
        rest = _LEDGER.pack(
            progress.num_tokens,
            progress.num_posted,
            progress.done,
        )
        self._put(place + _TURN.size, rest)
        self._put(place, _TURN.pack(progress.turn))
        self.bells[rank].ring()

    def read_progress(self, rank: int) -> Progress | None:
        """What a rank of this host has built and posted, None while it writes."""
        place = rank * _ROW_BYTES + _LEDGER_AT
        (before,) = _TURN.unpack_from(self._memory, place)
        rest = _LEDGER.unpack_from(self._memory, place + _TURN.size)
        (after,) = _TURN.unpack_from(self._memory, place)
        return None if before != after or before == _WRITING else Progress(before, *rest)

    def vote(self, rank: int, number: int, flags: Flags) -> None:
        """This rank's word on how its vote number `number` went."""
        place = rank * _ROW_BYTES + _VOTE_AT + number % 2 * _VOTE_BYTES
        self._put(place + _TURN.size, _VOTE.pack(*flags))
        self._put(place, _TURN.pack(number))
        self.bells[rank].ring()

    def read_vote(self, rank: int, number: int) -> Flags | None:
        """A rank's word on that vote, None while it is not given."""
        place = rank * _ROW_BYTES + _VOTE_AT + number % 2 * _VOTE_BYTES
        (given,) = _TURN.unpack_from(self._memory, place)
        return _VOTE.unpack_from(self._memory, place + _TURN.size) if given == number else None

    def read(self, rank: int) -> Position | None:
        """Where a rank was last seen, None when it has not been here."""
        row = _ROW.unpack_from(self._memory, rank * _ROW_BYTES)
        pid, step, since, phase, waiting = row
        if not pid:
            return None
        return Position(
            pid,
            None if step == _NO_STEP else step,
            phase.rstrip(b"\0").decode(errors="replace"),
            waiting.rstrip(b"\0").decode(errors="replace"),
            since,
        )

    def _put(self, place: int, data: bytes) -> None:
        """One copy: unlike ``Struct.pack_into`` it does not blank the place first."""
        self._memory[place : place + len(data)] = data
