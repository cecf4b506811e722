"""The oracle of the accepted counts: examples by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from followed import Followed, follow

from ppharness.oracle.buffers import UNOWNED, expected_calls, needs_sample
from ppharness.scenario.schedule import Row

_ = UNOWNED
PHASES = ["apply_sampled", "free", "add_request", "at_use", "postprocess_state"]


# One request


def test_one_request_on_an_earlier_rank() -> None:
    """Prefill at 0, verify at 2 (all 3 drafts accepted) and 4 (none); heard 2 steps later."""
    rank = follow("a:5+20[3,0]", pp=2, rank=0, max_num_reqs=2)
    assert [e.phase for e in rank.steps[0]] == PHASES
    assert rank.buffers(0) == [[_, _], [_, _], [_, 1], [_, 1], [_, 1]]
    assert [e.phase for e in rank.steps[1]] == PHASES[:3]  # a step without rows
    assert rank.buffers(1) == [[_, 1]] * 3
    assert rank.buffers(2) == [[_, 1]] * 5
    assert rank.buffers(3) == [[_, 1]] * 3
    assert rank.buffers(4) == [[_, 4]] * 5  # no neutral fill where all rows decode next
    assert rank.buffers(5) == [[_, 4]] * 3
    assert rank.buffers(6) == [[_, 1]] * 5
    assert [rank.at(s, "at_use").at_use for s in (0, 2, 4, 6)] == [{1: 1}, {1: 1}, {1: 4}, {1: 1}]


def test_one_request_on_the_last_rank() -> None:
    """Knows at once; applies nothing later."""
    rank = follow("a:5+20[3,0]", pp=2, rank=1, max_num_reqs=2)
    assert rank.buffers(2) == [[_, 1]] * 4 + [[_, 4]]
    assert rank.buffers(3) == [[_, 4]] * 3
    assert rank.buffers(4) == [[_, 4]] * 4 + [[_, 1]]
    assert all(e.writable == set() for e in rank.in_order() if e.phase == "apply_sampled")
    assert [rank.at(s, "at_use").at_use for s in (0, 2, 4, 6)] == [{1: 1}, {1: 1}, {1: 4}, {1: 1}]


def test_who_may_write_what_and_who_owns_it() -> None:
    rank = follow("a:5+5[3]", pp=2, rank=0, max_num_reqs=3)
    assert [sorted(e.writable) for e in rank.steps[0]] == [[], [], [2], [], []]
    assert [sorted(e.writable) for e in rank.steps[2]] == [[2], [], [], [], []]
    assert [e.phase for e in rank.steps[2]] == PHASES  # the last step with rows
    assert rank.at(0, "free").owners == {}
    assert rank.at(0, "add_request").owners == {2: "a"}
    assert [e.phase for e in rank.steps[4]] == ["drain", "free", "add_request"]
    assert [sorted(e.writable) for e in rank.steps[4]] == [[2], [2], []]
    assert rank.buffers(4) == [[_, _, 4], [_, _, _], [_, _, _]]  # first applied, then freed
    last = follow("a:5+5[3]", pp=2, rank=1, max_num_reqs=3)
    assert [sorted(e.writable) for e in last.steps[2]] == [[], [], [], [], [2]]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_sync_hears_in_the_very_next_step(rank: int) -> None:
    followed = follow("a:5+9[3,1]", pp=3, rank=rank, max_num_reqs=1, schedule="sync")
    assert [followed.exact(s, "at_use") for s in range(4)] == [[1], [1], [4], [2]]
    assert [followed.at(s, "at_use").at_use for s in range(4)] == [{0: 1}, {0: 1}, {0: 4}, {0: 2}]


def test_a_single_rank_is_the_last() -> None:
    rank = follow("a:5+9[3,1]", pp=1, rank=0, max_num_reqs=1)
    assert [rank.exact(s, "at_use") for s in range(4)] == [[1], [1], [4], [2]]


# Neutral counts


def test_chunks_take_the_neutral_fill() -> None:
    rank = follow("a:20+4[2]", pp=2, rank=0, max_num_reqs=1, max_num_batched_tokens=8)
    assert [sorted(rank.at(s, "postprocess_state").writable) for s in (0, 1, 2)] == [[0], [0], []]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_mixed_batch_of_verify_and_chunk(rank: int) -> None:
    """`a` in slot 1 verifies at 3 and 6, `b` in slot 0 has a chunk in every step from 1 on."""
    mixed = "a:4+30[3] b:90+2@1"
    followed = follow(mixed, pp=3, rank=rank, max_num_reqs=2, max_num_batched_tokens=10)
    assert [r.text for r in followed.schedule[3].rows] == ["verify a", "prefill b"]
    assert [r.text for r in followed.schedule[6].rows] == ["verify a", "prefill b"]
    assert followed.exact(3, "at_use") == [1, 1]
    assert followed.exact(3, "postprocess_state") == ([1, 1] if rank < 2 else [1, 4])
    assert followed.exact(5, "postprocess_state") == ([1, 1] if rank < 2 else [1, 4])
    # the deferred update leaves the chunk's slot alone
    assert followed.exact(6, "apply_sampled") == [1, 4]
    assert followed.at(6, "apply_sampled").writable == ({1} if rank < 2 else set())
    assert followed.at(6, "at_use").at_use == {1: 4, 0: 1}
    # and the neutral fill takes the verify row with it
    assert followed.exact(6, "postprocess_state") == ([1, 1] if rank < 2 else [1, 4])
    assert followed.at(6, "postprocess_state").writable == {0, 1}


def test_step_of_which_nobody_needs_the_sample_is_not_heard() -> None:
    """One-token answers: the neutral fill, and nothing to apply when they are freed."""
    rank = follow("a:5+1 b:3+1", pp=2, rank=0, max_num_reqs=2)
    assert rank.at(0, "postprocess_state").writable == {0, 1}
    assert rank.at(2, "drain").writable == set()


def test_one_token_answer_beside_a_row_that_decodes_next() -> None:
    rank = follow("a:5+1 b:3+9[3]", pp=2, rank=0, max_num_reqs=2)
    assert rank.at(0, "postprocess_state").writable == {0, 1}
    assert rank.at(2, "apply_sampled").writable == {0}  # only b


# Slots that change hands


@pytest.mark.parametrize("delay", [1, 2, 3, 4])
@pytest.mark.parametrize("rank", [0, 2, 3])
def test_late_sample_never_reaches_the_slots_next_owner(delay: int, rank: int) -> None:
    """R1 yields K + 1 at 4 and is freed `delay` steps later; R2 takes its only slot."""
    followed = follow("r1:5+30[3] r2:4+9[1]", f"abort r1 {4 + delay}", pp=4, rank=rank,
                      max_num_reqs=1)  # fmt: skip
    at, last = 4 + delay, rank == 3
    assert followed.schedule[at].added[0].req_id == "r2"
    assert followed.exact(at - 1, "add_request") == ([4] if last and delay > 1 else [1])
    # at exactly pp_size steps the update still comes first
    applied = [4] if last or delay == 4 else [1]
    assert followed.exact(at, "apply_sampled") == applied
    assert followed.exact(at, "free") == [_]
    assert followed.exact(at, "add_request") == [1]
    assert followed.at(at, "at_use").at_use == {0: 1}
    if delay < 4:
        assert followed.exact(8, "apply_sampled") == [1]
        assert followed.at(8, "apply_sampled").writable == set()
    assert followed.exact(at + 4, "at_use") == [1]
    assert followed.exact(at + 8, "at_use") == [2]  # R2's own first verify step


def test_only_the_rows_of_freed_slots_are_left_out() -> None:
    rank = follow("a:5+30[3] b:5+30[2]", "abort a 5", pp=4, rank=1, max_num_reqs=2)
    assert rank.at(8, "apply_sampled").writable == {0}
    assert rank.exact(8, "apply_sampled") == [3, _]


def test_all_rows_freed_before_their_sample_comes() -> None:
    gone = "abort a 5, abort b 6"
    rank = follow("a:5+30[3] b:5+30[3] c:3+2@7", gone, pp=4, rank=0, max_num_reqs=2)
    assert rank.exact(7, "add_request") == [1, _]  # b's slot, freed last
    assert rank.at(8, "apply_sampled").writable == set()
    assert rank.exact(8, "apply_sampled") == [1, _]


@pytest.mark.parametrize("rank", [0, 3])
def test_two_lives_in_one_slot_are_told_apart(rank: int) -> None:
    followed = follow("a:6+30[3,2]", "preempt a 5", pp=4, rank=rank, max_num_reqs=1)
    assert followed.exact(5, "at_use") == [1]
    assert followed.exact(8, "apply_sampled") == [1]
    assert followed.at(8, "apply_sampled").writable == set()
    assert [followed.at(s, "at_use").at_use[0] for s in (5, 9, 13)] == [1, 1, 3]


def test_row_aborted_in_flight_exists_on_the_last_rank_only() -> None:
    events = "drop b 4"
    earlier = follow("a:5+30[3] b:6+30[2]", events, pp=4, rank=0, max_num_reqs=2)
    last = follow("a:5+30[3] b:6+30[2]", events, pp=4, rank=3, max_num_reqs=2)
    assert set(earlier.at(4, "at_use").at_use) == {1}
    assert set(last.at(4, "at_use").at_use) == {0, 1}
    assert earlier.exact(4, "postprocess_state") == [1, 1]
    assert last.exact(4, "postprocess_state") == [3, 4]
    assert earlier.exact(5, "free") == [_, 1]
    assert earlier.exact(8, "apply_sampled") == [_, 4]


def test_chunk_aborted_in_flight_may_be_written_nowhere() -> None:
    """The fill runs for the chunk's batch, of which no row is left."""
    chunk = "a:5+30[3] b:40+2@9"
    rank = follow(chunk, "drop b 9", pp=4, rank=0, max_num_reqs=2, max_num_batched_tokens=8)
    assert [r.filtered for r in rank.schedule[9].rows] == [True]
    assert rank.at(9, "postprocess_state").writable == set()
    assert rank.exact(9, "postprocess_state") == [1, 4]


# Align mode


def align(requests: str, *, rank: int, pp: int = 2, k: int = 2, block: int = 16) -> Followed:
    return follow(
        requests, pp=pp, rank=rank, max_num_reqs=1, num_speculative_tokens=k,
        mamba_cache_mode="align", mamba_block_size=block,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "accept", "verified", "then"),
    [
        # verify at n0 = prompt with q 3; count left by it; count at the next use
        (13, 2, 1, 1),  # 16 computed: the boundary, inside the running block (vllm#50432)
        (13, 1, 2, 1),  # 15: not at a boundary, but the next step enters block 1
        (13, 0, 1, 1),
        (14, 1, 2, 2),  # 16: the boundary, but block 1 runs already
        (14, 2, 3, 3),  # 17: past it
        (15, 0, 1, 1),  # 16
        (15, 2, 3, 3),  # 18
        (12, 2, 3, 1),  # 15
        (16, 2, 3, 3),  # 19: block 1 since the verify step itself
        (5, 2, 3, 3),  # 8: nothing near
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_align_at_a_block_boundary(
    prompt: int, accept: int, verified: int, then: int, rank: int
) -> None:
    followed = align(f"a:{prompt}+20[{accept}]", rank=rank)
    row = followed.schedule[2].rows[0]
    numbers = (row.num_computed_tokens, row.num_scheduled_tokens, row.num_sampled)
    assert numbers == (prompt, 3, accept + 1)
    if rank == 1:
        assert followed.exact(2, "postprocess_state") == [verified]
    assert followed.exact(4, "apply_sampled") == [verified]
    assert followed.exact(4, "at_use") == [then]
    assert followed.at(4, "at_use").at_use == {0: then}


def test_align_crossing_resets_before_the_forward_on_every_rank() -> None:
    """Blocks of 4, K = 3: n0 7, 11 and 12 with 4 tokens each, all of which enter a new block."""
    for rank in (0, 1):
        followed = align("a:7+20[3,0,2]", rank=rank, k=3, block=4)
        assert [followed.at(s, "at_use").at_use[0] for s in (2, 4, 6)] == [1, 1, 1]
        assert followed.at(4, "at_use").writable == {0}
        assert followed.exact(4, "apply_sampled") == [4]
        assert followed.exact(4, "at_use") == [1]


def test_align_forgets_the_running_block_with_the_slot() -> None:
    """`b`'s first step is in block 0, `a` was in block 2 of the same slot."""
    followed = follow(
        "a:9+5[3] b:3+9[3]", pp=2, rank=1, max_num_reqs=1, mamba_cache_mode="align",
        mamba_block_size=4,
    )  # fmt: skip
    assert followed.schedule[4].added[0].req_id == "b"
    assert followed.exact(4, "at_use") == [1]
    # prefill of 3 in block 0; verify of 4 ends in block 1: crossed; 7 computed: 4 stays,
    # then 4 more end in block 2
    assert followed.exact(6, "postprocess_state") == [4]
    assert followed.at(8, "at_use").at_use == {0: 1}


# Whose sample is needed


def row(**changes: Any) -> Row:
    """A decode row with all drafts accepted, of a request of 8 prompt tokens and 8 outputs."""
    plain = Row(
        req_id="a", req_num=0, life=0, slot=0, prompt_len=8, prefill_len=8, max_seq_len=16,
        num_computed_tokens=8, num_computed_tokens_host=8, num_scheduled_tokens=4,
        num_draft_tokens=3, num_sampled=4, num_rejected=0, is_last=False,
    )  # fmt: skip
    computed = changes.get("num_computed_tokens", 8)
    return replace(plain, **{"num_computed_tokens_host": computed, **changes})


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, True),
        ({"num_computed_tokens": 0, "num_scheduled_tokens": 7}, False),  # a non-final chunk
        ({"num_computed_tokens": 0, "num_scheduled_tokens": 8}, True),
        ({"num_computed_tokens": 7, "num_scheduled_tokens": 1}, True),
        ({"num_computed_tokens": 7, "num_scheduled_tokens": 1, "max_seq_len": 9}, False),
        ({"num_computed_tokens": 7, "num_scheduled_tokens": 1, "max_seq_len": 10}, True),
        # a resumed request whose last token this is
        ({"num_computed_tokens": 14, "num_scheduled_tokens": 1, "prefill_len": 15}, False),
        # the host sees the end of a decode where the truth is short of it (vllm#54436)
        ({"num_computed_tokens": 11, "num_computed_tokens_host": 15}, True),
        ({"num_computed_tokens": 14, "is_last": True}, True),
    ],
)
def test_needs_sample(changes: dict[str, Any], needed: bool) -> None:
    assert needs_sample(row(**changes)) == needed


# Direct calls


@pytest.mark.parametrize(
    ("initial", "size", "calls", "expected"),
    [
        (9, 4, [([2, -1, 0], 0)], [[1, 9, 1, 9]]),
        (9, 4, [([2, -1, 0], 0), ([1, -1], [3, 5])], [[1, 9, 1, 9], [1, 3, 1, 9]]),
        (5, 8, [([5, 1], [3, 2])], [[5, 2, 5, 5, 5, 3, 5, 5]]),
        (5, 3, [([-1, 0], [4, 2])], [[2, 5, 5]]),
        (7, 3, [([], 0), ([], []), ([-1, -1], 4), ([-1], [4])], [[7, 7, 7]] * 4),
        (2, 3, [([2, 1, 0], [0, 1, 2])], [[2, 1, 1]]),
        (2, 3, [([0, 1, 2], 3), ([1], 0)], [[3, 3, 3], [3, 1, 3]]),
        (0, 2, [([1], 0)], [[0, 1]]),  # what no call touches stays, even out of range
    ],
)
def test_expected_calls(
    initial: int, size: int, calls: list[tuple], expected: list[list[int]]
) -> None:
    history = expected_calls(initial, size, calls)
    assert [buffer.tolist() for buffer in history] == expected
    assert all(buffer.dtype == np.int32 for buffer in history)
