"""What the default suite shows, at pp_size 4."""

from __future__ import annotations

from schedules import SUITE, from_suite, suite

from ppharness.oracle.buffers import needs_sample
from ppharness.scenario.schedule import Row, Step, build_schedule


def test_suite_is_small_and_described() -> None:
    read = suite()
    assert [s.name for s in read] == [path.stem for path in sorted(SUITE.glob("**/*.yaml"))]
    assert all(s.description.endswith(".") for s in read)
    assert sum(s.pp_size is not None for s in read) <= 2
    assert sum(len(s.calls) or len(build_schedule(s, 4)) for s in read) <= 720


def rows_of(steps: list[Step]) -> list[Row]:
    return [row for step in steps for row in step.rows]


def frees_after_verify(steps: list[Step]) -> set[int]:
    """Steps between a row with drafts and the taking of its slot by someone else."""
    ran: dict[int, tuple[int, str, int]] = {}  # slot -> step, request and life of its last verify
    found = set()
    for step in steps:
        for added in step.added:
            at, *owner = ran.get(added.slot, (-1, added.req_id, added.life))
            if owner != [added.req_id, added.life]:
                found.add(step.index - at)
        ran |= {r.slot: (step.index, r.req_id, r.life) for r in step.rows if r.num_draft_tokens}
    return found


def test_founding_cases_have_chunks() -> None:
    for name, chunks in (("founding-case", 2), ("founding-case-long", 2)):
        _, steps = from_suite(name)
        assert sum(r.num_sampled == 0 for r in rows_of(steps)) >= chunks


def test_one_chunk_prompts_never_take_the_scalar_branch() -> None:
    _, steps = from_suite("one-chunk-prompts")
    assert all(needs_sample(r) for r in rows_of(steps))


def test_one_token_answer_has_steps_without_a_broadcast_and_mixed_ones() -> None:
    _, steps = from_suite("one-token-answer")
    needs = [{needs_sample(r) for r in s.rows if r.num_sampled} for s in steps]
    assert {False} in needs and {True, False} in needs


def test_near_length_cap_goes_on_where_the_host_sees_the_end() -> None:
    _, steps = from_suite("near-length-cap")
    fooled = {
        r.req_id
        for r in rows_of(steps)
        if r.num_computed_tokens_host + 1 >= r.max_seq_len > r.num_computed_tokens + r.num_sampled
    }
    assert len(fooled) >= 2


def test_steps_without_drafts_has_decodes_without_and_with_fewer() -> None:
    found, steps = from_suite("steps-without-drafts")
    assert found.num_speculative_tokens == 3
    drafts = {r.num_draft_tokens for r in rows_of(steps) if not r.is_prefilling}
    assert {0, 1, 3} <= drafts


def test_slots_are_reused_after_every_delay() -> None:
    _, steps = from_suite("slot-reuse-every-delay")
    assert {1, 2, 3, 4} <= frees_after_verify(steps)


def test_slot_is_reused_by_a_first_step_as_long_as_a_verify_step() -> None:
    found, steps = from_suite("slot-reuse-count-reset")
    firsts = [r for s in steps if s.freed for r in s.rows if r.num_computed_tokens == 0]
    assert found.num_speculative_tokens + 1 in {r.num_scheduled_tokens for r in firsts}


def test_mixed_batches_of_chunk_and_verify() -> None:
    _, steps = from_suite("mixed-chunk-and-verify")
    kinds = [(r.num_draft_tokens, r.num_sampled) for s in steps if len(s.rows) == 2 for r in s.rows]
    assert kinds == [(3, 4), (0, 0), (3, 2), (0, 0)]


def test_all_rows_are_freed_before_their_sample_comes() -> None:
    _, steps = from_suite("all-rows-freed")
    assert {r.req_id for r in steps[4].rows} == {f.req_id for s in steps[5:8] for f in s.freed}
    assert steps[7].added  # in a slot that one of them had


def test_preempted_and_resumed_in_one_step_and_slot() -> None:
    _, steps = from_suite("preempted-resumed-same-slot")
    both = [s for s in steps if {(f.req_id, f.slot) for f in s.freed}
            & {(a.req_id, a.slot) for a in s.added}]  # fmt: skip
    ran = {s.index - d for s in both for d in (1, 4) for r in steps[s.index - d].rows
           if r.req_id == "a" and r.num_draft_tokens}  # fmt: skip
    assert [s.index for s in both] == [5, 13]
    assert ran == {4, 9}  # one step before, and pp_size steps before


def test_preemption_in_prefill_and_in_decode_resumes_later() -> None:
    _, steps = from_suite("preempted-prefill-and-decode")
    lives = {(r.req_id, r.life) for r in rows_of(steps)}
    assert {("a", 0), ("a", 1), ("b", 0), ("b", 1)} <= lives
    assert {f.req_id for f in steps[6].freed} == {"a"} and not steps[6].added


def test_last_slot_is_live_or_free_when_a_chunk_is_dropped() -> None:
    for name, live in (("last-slot-live", True), ("last-slot-free", False)):
        found, steps = from_suite(name)
        assert found.idx_mapping_dtype == "int64"
        owned: set[int] = set()
        seen = []
        for step in steps:
            owned = (owned - {f.slot for f in step.freed}) | {a.slot for a in step.added}
            if any(r.filtered and not needs_sample(r) for r in step.rows):
                in_batch = found.max_num_reqs - 1 in {r.slot for r in step.rows}
                seen.append((found.max_num_reqs - 1 in owned, in_batch))
        assert seen and all(s == (live, False) for s in seen)


def test_aborts_in_flight_drop_one_row_and_whole_batches() -> None:
    _, steps = from_suite("aborts-in-flight")
    dropped = [[r.filtered for r in s.rows] for s in steps if any(r.filtered for r in s.rows)]
    assert dropped == [[False, True, False, False], [True], [True, True]]


def test_sparse_slots_are_five_and_one() -> None:
    _, steps = from_suite("sparse-slots")
    mappings = [[r.slot for r in s.rows] for s in steps if s.rows]
    assert mappings == [[7, 6, 5, 4, 3, 2, 1], [6, 5, 3, 2, 1], [5, 1], [5, 1], [1]]


def test_align_boundary_has_the_reported_numbers() -> None:
    _, steps = from_suite("align-boundary")
    numbers = [
        (r.num_computed_tokens, r.num_scheduled_tokens, r.num_sampled) for r in steps[4].rows
    ]
    assert numbers == [(13, 3, 3), (14, 3, 2), (15, 3, 1), (12, 3, 1)]


def test_busy_hour_has_everything() -> None:
    found, steps = from_suite("busy-hour")
    rows = rows_of(steps)
    assert 30 <= len(steps) <= 50 and len(found.requests) == 8
    assert {r.life for r in rows} >= {0, 1}
    assert any(
        len(s.rows) > 1 and {needs_sample(r) for r in s.rows} == {True, False} for s in steps
    )
    assert frees_after_verify(steps) & {1, 2, 3, 4}
    assert any(s.freed and s.added for s in steps) and any(not s.rows for s in steps)
