"""The two layers of the oracle of the accepted counts agree."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from followed import Followed, follow
from hypothesis import given, settings
from schedules import pp_sizes, scenarios, suite

from ppharness.oracle.buffers import UNOWNED
from ppharness.scenario import Scenario
from ppharness.scenario.schedule import Row, relay_depth


def story_at_use(scenario: Scenario, before: Row | None, now: Row) -> int:
    """The count of the owner's previous step, told again without the oracle."""
    if before is None or now.is_prefilling:
        return 1
    if scenario.mamba_cache_mode == "align":
        ends = [r.num_computed_tokens + r.num_scheduled_tokens - 1 for r in (before, now)]
        if ends[0] // scenario.mamba_block_size != ends[1] // scenario.mamba_block_size:
            return 1
    return max(before.num_sampled, 1)


def check_consistent(scenario: Scenario, pp_size: int) -> None:
    ranks = [Followed(scenario, pp_size, rank) for rank in range(pp_size)]
    if len(ranks) > 3:  # those between the first and the last are all the same
        for other in ranks[1:-1]:
            for a, b in zip(ranks[0].in_order(), other.in_order(), strict=True):
                assert a.exact.tolist() == b.exact.tolist()
                assert (a.step, a.phase, a.writable, a.owners, a.at_use) == (
                    b.step, b.phase, b.writable, b.owners, b.at_use,
                )  # fmt: skip
    for rank, followed in zip((0, pp_size - 1), (ranks[0], ranks[-1]), strict=True):
        check_one_rank(scenario, followed, is_last=rank == pp_size - 1)
    check_ranks_agree(ranks[0], ranks[-1], relay_depth(scenario, pp_size))


def check_one_rank(scenario: Scenario, followed: Followed, *, is_last: bool) -> None:
    before: dict[tuple[str, int], Row] = {}
    last = np.full(scenario.max_num_reqs, UNOWNED)
    k = scenario.num_speculative_tokens
    for step, expectations in zip(followed.schedule, followed.steps, strict=True):
        rows = {r.slot: r for r in step.rows if is_last or not r.filtered}
        for expected in expectations:
            owned = {int(s) for s in np.flatnonzero(expected.exact != UNOWNED)}
            assert owned == set(expected.owners)
            assert all(1 <= expected.exact[s] <= k + 1 for s in owned)
            changed = {int(s) for s in np.flatnonzero(expected.exact != last)}
            assert changed <= expected.writable
            last = expected.exact
            if expected.phase == "at_use":
                assert set(expected.at_use) == set(rows)
                for slot, count in expected.at_use.items():
                    assert expected.owners[slot] == rows[slot].req_id
                    assert count == expected.exact[slot]
                    lives = (rows[slot].req_id, rows[slot].life)
                    assert count == story_at_use(scenario, before.get(lives), rows[slot])
                    before[lives] = rows[slot]
            else:
                assert not expected.at_use
    assert not last.size or set(last.tolist()) == {UNOWNED}


def check_ranks_agree(first: Followed, last: Followed, depth: int) -> None:
    """What an earlier rank applies is what the last one knew `depth` steps before."""
    for step in first.schedule[depth:]:
        applied = first.steps[step.index][0]
        assert applied.phase in ("apply_sampled", "drain")
        then = first.schedule[step.index - depth]
        for slot in applied.writable:
            known = last.at(then.index, "postprocess_state").exact[slot]
            assert applied.exact[slot] == known
            assert slot in {r.slot for r in then.rows if r.num_sampled and not r.filtered}


@settings(max_examples=120, deadline=None)
@given(scenarios(), pp_sizes)
def test_count_at_use_is_what_the_exact_buffer_holds(random: Scenario, pp_size: int) -> None:
    check_consistent(random, pp_size)


@pytest.mark.parametrize("pp_size", [1, 2, 4, 16])
@pytest.mark.parametrize("entry", [s for s in suite() if s.requests], ids=lambda s: s.name)
def test_default_suite_is_consistent(entry: Scenario, pp_size: int) -> None:
    check_consistent(entry, pp_size)


def test_snapshots_do_not_share_memory() -> None:
    rank = follow("a:5+9[3,1]", pp=2, rank=0)
    exact = [e.exact for e in rank.in_order()]
    assert not any(np.shares_memory(a, b) for a, b in pairwise(exact))
