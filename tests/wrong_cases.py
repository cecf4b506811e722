"""What each wrong target is run with, and where it must be found.

The expected places follow from the protocol of a step on a pipeline of 3 stages, async:
what is sampled in step T is stored by PP2 in T and by PP0 and PP1 in T + 3, before the
request runs again.  The first request takes slot ``max_num_reqs - 1``, the next the one
below; a freed slot is the first to be taken again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ANY: Any = object()  # not asserted
POISON = 0x0BADBAD0  # in a slot without an owner
CANARY = 0x5AFEC0DE  # around the buffer
ALL, OTHERS, LAST = (0, 1, 2), (0, 1), (2,)

# Step 0: a's prompt, 1 token comes out; verify steps 3, 6 and 9 yield 3, 1 and 4.
# a has its 9 tokens then and is freed in step 12.
VERIFY = """
name: verify
max_num_reqs: 4
num_speculative_tokens: 3
requests: [{id: a, prompt_tokens: 5, max_tokens: 9, accept: [2, 0, 3]}]
"""
# Chunks of 8, 8 and 4 tokens in steps 0 to 2; a decodes in step 5.
CHUNKS = """
name: chunks
max_num_reqs: 4
max_num_batched_tokens: 8
requests: [{id: a, prompt_tokens: 20, max_tokens: 4}]
"""
# Slots 3, 2 and 1; prompts in step 0, verify steps of all three in 3, 6, ...
THREE = """
name: three
max_num_reqs: 4
num_speculative_tokens: 3
requests:
  - {id: a, prompt_tokens: 4, max_tokens: 9, accept: [2]}
  - {id: b, prompt_tokens: 4, max_tokens: 9, accept: [0]}
  - {id: c, prompt_tokens: 4, max_tokens: 9, accept: [2]}
"""
# a yields 1 + 3 tokens and is freed in step 6, where b takes its slot 3.
REUSE = """
name: reuse
max_num_reqs: 4
num_speculative_tokens: 3
requests:
  - {id: a, prompt_tokens: 5, max_tokens: 4, accept: [2]}
  - {id: b, prompt_tokens: 5, max_tokens: 9, arrive_at: 6}
"""
# Step 6: row 0 verifies a (its step 3 yielded 3), row 1 is a non-final chunk of b.
MIXED = """
name: mixed
max_num_reqs: 4
max_num_batched_tokens: 8
num_speculative_tokens: 3
requests:
  - {id: a, prompt_tokens: 5, max_tokens: 9, accept: [2]}
  - {id: b, prompt_tokens: 30, max_tokens: 4, arrive_at: 6}
"""
# Step 3 runs a and b; PP0 and PP1 hold -1 for b there, and again when they hear of it.
IN_FLIGHT = """
name: in-flight
max_num_reqs: 4
num_speculative_tokens: 3
requests:
  - {id: a, prompt_tokens: 4, max_tokens: 9, accept: [2]}
  - {id: b, prompt_tokens: 4, max_tokens: 9, accept: [1]}
events: [{step: 3, abort: b, in_flight: true}]
"""
# The same for c, when a's slot 3, the last one, is free again since step 3.
IN_FLIGHT_LAST_SLOT_FREE = """
name: in-flight-last-slot-free
max_num_reqs: 4
num_speculative_tokens: 3
requests:
  - {id: a, prompt_tokens: 4, max_tokens: 1}
  - {id: b, prompt_tokens: 4, max_tokens: 9, accept: [2]}
  - {id: c, prompt_tokens: 4, max_tokens: 9, accept: [1]}
events: [{step: 3, abort: c, in_flight: true}]
"""
# Both take their slots (3 and 2) in step 0, but b's prompt ends in step 1: a verifies in
# 3, 6, ... (3 tokens each) and b in 4, 7, ... (1 token each).
TAKING_TURNS = """
name: taking-turns
max_num_reqs: 4
max_num_batched_tokens: 8
num_speculative_tokens: 3
requests:
  - {id: a, prompt_tokens: 5, max_tokens: 9, accept: [2]}
  - {id: b, prompt_tokens: 6, max_tokens: 4, accept: [0]}
"""
# A row in every step up to 11.
NO_EMPTY_STEP = """
name: no-empty-step
max_num_reqs: 4
num_speculative_tokens: 3
requests:
  - {id: a, prompt_tokens: 5, max_tokens: 9, accept: [2, 0, 3]}
  - {id: b, prompt_tokens: 5, max_tokens: 9, accept: [2, 0, 3], arrive_at: 1}
  - {id: c, prompt_tokens: 5, max_tokens: 9, accept: [2, 0, 3], arrive_at: 2}
"""
# a yields 4 tokens in step 3 and is gone in step 4, where b takes its slot 3; b's prompt
# is in chunks in steps 4 to 8.  PP0 and PP1 hear of a's 4 tokens in step 6.
STALE = """
name: stale
max_num_reqs: 4
max_num_batched_tokens: 8
num_speculative_tokens: 3
requests:
  - {id: a, prompt_tokens: 5, max_tokens: 9, accept: [3]}
  - {id: b, prompt_tokens: 40, max_tokens: 4, arrive_at: 4}
events: [{step: 4, abort: a}]
"""
# The same, but b's prompt is one chunk: its own sample of step 4 comes in step 7, in time.
STALE_HEALS = """
name: stale-heals
max_num_reqs: 4
num_speculative_tokens: 3
requests:
  - {id: a, prompt_tokens: 5, max_tokens: 9, accept: [3]}
  - {id: b, prompt_tokens: 5, max_tokens: 4, arrive_at: 4}
events: [{step: 4, abort: a}]
"""
# The same, but nobody takes slot 3; c goes on in slot 2.
STALE_UNOWNED = """
name: stale-unowned
max_num_reqs: 4
num_speculative_tokens: 3
requests:
  - {id: a, prompt_tokens: 5, max_tokens: 9, accept: [3]}
  - {id: c, prompt_tokens: 5, max_tokens: 9, accept: [1]}
events: [{step: 4, abort: a}]
"""
# Row 0 of step 3 is a's and is not to be applied in step 6, row 1 is b's and is.
FIRST_ROW_GONE = """
name: first-row-gone
max_num_reqs: 4
num_speculative_tokens: 3
requests:
  - {id: a, prompt_tokens: 5, max_tokens: 9, accept: [3]}
  - {id: b, prompt_tokens: 5, max_tokens: 9, accept: [1]}
events: [{step: 4, abort: a}]
"""
# All drafts are refused: 1 token in step 0 and one in 3, 6, ..., 21.  The host, which
# counts the 3 drafts of the last step in, believes 12 + 3 = 15 tokens computed in step
# 15, one less than prompt and output together.
LOOKS_FINISHED = """
name: looks-finished
max_num_reqs: 4
num_speculative_tokens: 3
requests: [{id: a, prompt_tokens: 8, max_tokens: 8, accept: [0]}]
"""
# Blocks of 16: a's prompt and the 4 tokens of step 3 end in block 0, 3 of them stay (13);
# step 6 ends at 17, so the state moves on to block 1 and the count of 3 gives way to 1.
CROSSING = """
name: crossing
max_num_reqs: 4
num_speculative_tokens: 3
mamba_cache_mode: align
requests: [{id: a, prompt_tokens: 10, max_tokens: 9, accept: [2]}]
"""
# Step 3 runs tokens 14 to 16 of block 0 and all stay: the running block is the saved one.
BOUNDARY = """
name: boundary
max_num_reqs: 4
num_speculative_tokens: 2
mamba_cache_mode: align
requests: [{id: a, prompt_tokens: 13, max_tokens: 9, accept: [2]}]
"""
FILL = """
name: fill
max_num_reqs: 4
initial: 9
calls: [{idx_mapping: [2, -1, 0], num_sampled: 0}]
"""
SCATTER = """
name: scatter
max_num_reqs: 8
initial: 9
calls:
  - {idx_mapping: [5, 1], num_sampled: [3, 2]}
  - {idx_mapping: [4, -1], num_sampled: [2, 7]}
"""


@dataclass(frozen=True)
class Wrong:
    """A target, a scenario that shows its fault, and where it must show first."""

    target: str
    scenario: str
    kind: str
    ranks: tuple[int, ...]  # of 3, that have this finding
    step: int | None
    phase: str | None
    slot: int | None
    expected: Any = ANY
    actual: Any = ANY
    req_id: Any = "a"

    def __str__(self) -> str:
        return f"{self.target}-{self.scenario.split()[1]}"


STATE = [
    # PP2 stores the count of a non-final chunk, which is 0, at once.
    Wrong("StoresZero", CHUNKS, "mismatch", LAST, 0, "postprocess_state", 3, actual=0),
    # The others store the neutral count for it.
    Wrong("StoresScalarZero", CHUNKS, "mismatch", OTHERS, 0, "postprocess_state", 3, actual=0),
    Wrong("StoresScalarZero", FILL, "mismatch", ALL, 0, "postprocess_state", 0, 1, 0, None),
    # 3 tokens of step 3 are read in step 6; in step 3 the count was 1 = max(1 - 1, 1).
    Wrong("CountsDrafts", VERIFY, "mismatch", ALL, 6, "at_use", 3, 3, 2),
    # The whole buffer is compared: PP2 stores it in step 3.
    Wrong("ExactCountsDrafts", VERIFY, "mismatch", LAST, 3, "postprocess_state", 3, 3, 2),
    Wrong("CountsDraftsOnPP1", VERIFY, "mismatch", (1,), 6, "at_use", 3, 3, 2),
    Wrong("CountsOneMore", VERIFY, "mismatch", ALL, 3, "at_use", 3, 1, 2),
    # K is 0, so 2 is out of range where PP2 stores it, for the final chunk in step 2.
    Wrong("CountsOneMore", CHUNKS, "mismatch", LAST, 2, "postprocess_state", 3, actual=2),
    # b finds what the harness left for it in the freed slot 3.
    Wrong("NoReset", REUSE, "mismatch", ALL, 6, "add_request", 3, ANY, POISON + 1 + 3, "b"),
    Wrong("ResetsOtherSlot", VERIFY, "stray_write", ALL, 0, "add_request", 2, POISON, 1, None),
    Wrong("ClearsOnRemove", VERIFY, "stray_write", ALL, 12, "free", 0, POISON, 1, None),
    Wrong(
        "WritesBeforeBuffer", IN_FLIGHT, "stray_write", OTHERS, 6, "apply_sampled", -1,
        CANARY, 2, None,
    ),
    Wrong(
        "WritesBeforeBuffer", FILL, "stray_write", ALL, 0, "postprocess_state", -1,
        CANARY, 1, None,
    ),
    Wrong(
        "WritesAfterBuffer", IN_FLIGHT, "stray_write", OTHERS, 6, "apply_sampled", 4,
        CANARY, 2, None,
    ),
    Wrong(
        "Wraps", IN_FLIGHT_LAST_SLOT_FREE, "stray_write", OTHERS, 6, "apply_sampled", 3,
        POISON, 2, None,
    ),
    # Slot 3 is a's: it gets its own 3, then b's 2.
    Wrong("Wraps", IN_FLIGHT, "mismatch", OTHERS, 6, "at_use", 3, 3, 2),
    Wrong("Wraps", SCATTER, "stray_write", ALL, 1, "postprocess_state", 7, 9, 7, None),
    Wrong(
        "WritesNeighbour", VERIFY, "stray_write", LAST, 0, "postprocess_state", 2,
        POISON, 1, None,
    ),
    # PP2 stores a's 3 in b's slot, too, in step 3; b reads it in step 4.  On the others
    # b's own count comes in between.
    Wrong("WritesNeighbour", TAKING_TURNS, "stray_write", LAST, 3, "postprocess_state", 2, 1, 3,
          "b"),
    Wrong("FirstTwoRows", THREE, "mismatch", ALL, 6, "at_use", 1, 3, 1, "c"),
    # Three rows, so slot 3 is taken for out of bounds.
    Wrong("BoundsOnSlot", THREE, "mismatch", ALL, 6, "at_use", 3, 3, 1),
    Wrong("BoundsOnSlot", SCATTER, "mismatch", ALL, 0, "postprocess_state", 5, 3, 9, None),
    Wrong("FirstRowForAll", THREE, "mismatch", ALL, 6, "at_use", 2, 1, 3, "b"),
    Wrong("ScalarOnLastRank", FILL, "mismatch", OTHERS, 0, "postprocess_state", 0, 1, 9, None),
    # a's 3, applied in step 6, must give way to 1, since b's chunk is in the batch.
    Wrong("ExactScalarOnLastRank", MIXED, "mismatch", OTHERS, 6, "postprocess_state", 3, 1, 3),
    Wrong("IgnoresTensorOnLastRank", VERIFY, "mismatch", LAST, 6, "at_use", 3, 3, 1),
    Wrong("WritesWhilePreparing", VERIFY, "stray_write", ALL, 6, "preprocess_state", 3, 3, 1),
]  # fmt: skip
RELAY = [
    # b's chunk of step 6 reads 4, where it needs the 1 of a new request.
    Wrong("NoGeneration", STALE, "stray_write", OTHERS, 6, "apply_sampled", 3, 1, 4, "b"),
    Wrong("NoGeneration", STALE_UNOWNED, "stray_write", OTHERS, 6, "apply_sampled", 3, POISON, 4,
          None),
    Wrong("ExactNoGeneration", STALE_HEALS, "stray_write", OTHERS, 6, "apply_sampled", 3, 1, 4,
          "b"),
    # Nothing is applied in step 3, so PP0 goes on from token 0 there.
    Wrong("TooDeep", VERIFY, "divergence", (0,), 3, "forward", 3, actual=0),
    Wrong("StandsStill", VERIFY, "divergence", (0,), 3, "forward", 3, actual=0),
    Wrong("DropsFirstRow", VERIFY, "divergence", (0,), 3, "forward", 3, actual=0),
    # In step 2, where nothing is due.
    Wrong("TooShort", VERIFY, "divergence", OTHERS, 2, "apply_sampled", None, 0, 1, None),
    Wrong("CorruptsToken", VERIFY, "divergence", (1,), 3, "apply_sampled", 3),
    # Step 0 yielded 1 token and rejected none, step 3 yielded 3 and rejected 1.
    Wrong("SwapsCounts", VERIFY, "divergence", OTHERS, 3, "apply_sampled", 3, 1, 0),
    Wrong("ForgetsRejected", VERIFY, "divergence", OTHERS, 6, "apply_sampled", 3, 1, 0),
    Wrong("LastTwice", VERIFY, "divergence", OTHERS, 6, "apply_sampled", 3),
    Wrong("FlipsSlots", THREE, "divergence", OTHERS, 3, "apply_sampled", 3, 3, 1),
    Wrong("CompactsMapping", FIRST_ROW_GONE, "divergence", OTHERS, 6, "apply_sampled", 3, 3, 2),
    # a's count of 3 must give way to 1 in step 6, where b's chunk does not decode next.
    Wrong("ExactAlwaysTrue", MIXED, "mismatch", OTHERS, 6, "postprocess_state", 3, 1, 3),
    # a's count of 3, applied in step 6, must stay.
    Wrong("ExactAlwaysFalse", VERIFY, "stray_write", OTHERS, 6, "postprocess_state", 3, 3, 1),
    # The sample of step 15 is dropped on all ranks, and with it that 3 drafts were refused:
    # in step 18 positions are 3 too far on PP0 and PP1, and in what PP2 receives.
    Wrong("LooksFinished", LOOKS_FINISHED, "divergence", ALL, 18, "forward", 3, 13, 16),
]  # fmt: skip
ALIGN = [
    Wrong("NoResetAtCrossing", CROSSING, "mismatch", ALL, 6, "at_use", 3, 1, 3),
    # Wrong state, right counts: every stage puts out wrong hidden values in the next step.
    Wrong("NoBiasAtCrossing", CROSSING, "divergence", ALL, 6, "forward", 3),
    Wrong("ReadsWhatItWrote", BOUNDARY, "divergence", ALL, 6, "forward", 3),
    # Step 6 moves on to block 1 and takes the state from 2 tokens too far.
    Wrong("NoResetAtBoundary", BOUNDARY, "divergence", ALL, 6, "forward", 3),
    Wrong("ExactNoResetAtBoundary", BOUNDARY, "mismatch", LAST, 3, "postprocess_state", 3, 1, 3),
]  # fmt: skip


@dataclass(frozen=True)
class Raising:
    """A target, and where its exception must show; rank 1 where nothing else is said."""

    target: str
    step: int | None
    phase: str | None
    function: str
    scenario: str = VERIFY
    ranks: tuple[int, ...] = (1,)

    def __str__(self) -> str:
        return f"{self.target}-{self.scenario.split()[1]}"


RAISING = [
    Raising("StateConstructor", None, None, "__init__", ranks=ALL),
    Raising("StateConstructor", None, None, "__init__", FILL, ranks=ALL),
    Raising("RelayConstructor", None, None, "__init__"),
    Raising("Add", 0, "add_request", "add_request", ranks=(2,)),
    Raising("Preprocess", 0, "preprocess_state", "preprocess_state"),
    Raising("Postprocess", 0, "postprocess_state", "postprocess_state", CHUNKS),
    Raising("Postprocess", 3, "apply_sampled", "postprocess_state"),
    Raising("Postprocess", 0, "postprocess_state", "postprocess_state", FILL),
    Raising("Receive", 0, "relay", "receive", ranks=(0,)),
    Raising("Broadcast", 0, "relay", "broadcast", ranks=(2,)),
    Raising("HalfBroadcast", 0, "relay", "broadcast", ranks=(2,)),
    Raising("GetPrev", 3, "apply_sampled", "get_prev_sampled_outputs"),
    Raising("Remove", 12, "free", "remove_request", ranks=(0,)),
    Raising("Freed", 12, "free", "on_req_idx_freed"),
]
