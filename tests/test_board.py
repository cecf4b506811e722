"""The board: rows that are read while they are written, votes of ranks that are ahead."""

from __future__ import annotations

import os
import time

import pytest

from ppharness.world import bell
from ppharness.world.board import Board, Progress
from ppharness.world.layout import Layout


def test_a_row_that_is_being_written_is_still_there() -> None:
    """A writer blanks its row for a moment; a reader must not take the rank for absent."""
    board, path = Board.create(2)
    board.write(1, None, "start-up")
    writer = os.fork()
    if writer == 0:
        own = Board.open(path, 2)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            own.write(1, 3, "forward", "x" * 100)
        os._exit(0)
    missed = 0
    while os.waitpid(writer, os.WNOHANG)[0] == 0:
        missed += board.read(1) is None
    board.close()
    assert missed == 0


def test_progress_is_of_one_turn() -> None:
    """Never the turn of one step with the tokens of another."""
    board, path = Board.create(1)
    writer = os.fork()
    if writer == 0:
        own = Board.open(path, 1)
        end = time.monotonic() + 1.0
        turn = 1
        while time.monotonic() < end:
            own.write_progress(0, Progress(turn, turn * 7, 0, False))
            turn += 1
        os._exit(0)
    seen = []
    while os.waitpid(writer, os.WNOHANG)[0] == 0:
        progress = board.read_progress(0)
        if progress is not None and progress.turn > 0:
            seen.append(progress)
    board.close()
    assert seen and all(p.num_tokens == 7 * p.turn for p in seen)


def test_a_vote_stays_while_the_next_one_is_given() -> None:
    board, _ = Board.create(1)
    board.vote(0, 4, (0, 0, 11))
    board.vote(0, 5, (1, 0, 22))
    assert board.read_vote(0, 4) == (0, 0, 11)
    assert board.read_vote(0, 5) == (1, 0, 22)
    board.vote(0, 6, (0, 1, 33))
    assert board.read_vote(0, 4) is None
    board.close()


def test_ranks_of_one_host() -> None:
    layout = Layout(rank=5, world_size=8, local_rank=1, local_world_size=4, tp_size=1)
    assert layout.local_ranks == {4, 5, 6, 7}


@pytest.mark.parametrize("known", [True, False], ids=["futex", "other-machine"])
def test_a_bell_wakes_who_waits(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    if not known:
        monkeypatch.setattr(bell, "_FUTEX", None)
    board, path = Board.create(2)
    waiter = os.fork()
    if waiter == 0:
        rings = Board.open(path, 2).bells[1]
        started = time.monotonic()
        while rings.count == 0 and time.monotonic() < started + 30:
            rings.wait(0, 30)
        os._exit(0 if 0.1 < time.monotonic() - started < 20 else 1)
    time.sleep(0.5)
    board.vote(0, 1, (0, 0, 0))  # another rank's bell: nobody wakes for it
    time.sleep(0.2)
    board.vote(1, 1, (0, 0, 0))
    _, status = os.waitpid(waiter, 0)
    assert status == 0
    board.close()


def test_a_ring_before_the_wait_is_not_missed() -> None:
    board, _ = Board.create(1)
    seen = board.bells[0].count
    board.write_progress(0, Progress(1, 0, 0, False))
    started = time.monotonic()
    board.bells[0].wait(seen, 10)
    assert time.monotonic() - started < 5
    board.close()
