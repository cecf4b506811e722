"""What ``num_accepted_tokens`` must hold, per rank, step and phase.

Two layers.  ``at_use``, ``live`` and ``unowned`` hold for every implementation.
``exact`` is the whole buffer after each phase for a target that follows the
protocol of the step to the letter.  Both come from the schedule alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from ..scenario.model import Scenario
from ..scenario.schedule import Row, Step, relay_depth

UNOWNED = -1  # in `exact`: no live request owns the slot


@dataclass
class Expectation:
    """What must hold for the buffer after one phase of one step on one rank."""

    step: int
    phase: str
    exact: np.ndarray  # [max_num_reqs] int32, UNOWNED where nobody owns the slot
    writable: frozenset[int]  # slots that this phase may write
    owners: dict[int, str]  # slot -> request that owns it now
    at_use: dict[int, int] = field(default_factory=dict)  # slot -> count that the forward reads


def needs_sample(row: Row) -> bool:
    """Whether a later step of this request needs what the row samples.

    True unless the row is a non-final prefill chunk, or a final one whose only
    token reaches the request's length cap (the rule since vLLM 0.30.0).  The host
    decides, so its own count is what counts.
    """
    computed = row.num_computed_tokens_host
    if computed + row.num_scheduled_tokens < row.prefill_len:
        return False
    return computed >= row.prefill_len or row.prefill_len + 1 < row.max_seq_len


class BufferOracle:
    """One rank's buffer, followed through the schedule step by step."""

    def __init__(self, scenario: Scenario, schedule: list[Step], *, pp_size: int, pp_rank: int):
        self.last_busy_step = max((s.index for s in schedule if s.rows), default=-1)
        self.is_last = pp_rank == pp_size - 1
        self.align = scenario.mamba_cache_mode == "align"
        self.block_size = scenario.mamba_block_size
        self.buffer = np.full(scenario.max_num_reqs, UNOWNED, dtype=np.int32)
        self.owners: dict[int, tuple[str, int]] = {}  # slot -> (request, life)
        self.last_row: dict[tuple[str, int], Row] = {}
        self.block: dict[int, int] = {}  # slot -> column of the running block
        depth = relay_depth(scenario, pp_size)
        # rows of the steps whose samples were not heard yet, oldest first
        self.fifo: deque[tuple[Row, ...]] = deque([()] * depth)

    def step(self, step: Step) -> list[Expectation]:
        """Expectations of a step's phases, in order."""
        drained = step.index > self.last_busy_step
        out = [self._expect(step, "drain" if drained else "apply_sampled", self._apply_sampled())]
        for freed in step.freed:
            self.buffer[freed.slot] = UNOWNED
            del self.owners[freed.slot]
        out.append(self._expect(step, "free", {f.slot for f in step.freed}))
        for added in step.added:
            self.buffer[added.slot] = 1
            self.owners[added.slot] = (added.req_id, added.life)
            self.block[added.slot] = (added.num_computed_tokens - 1) // self.block_size
        out.append(self._expect(step, "add_request", {a.slot for a in step.added}))
        if not step.rows:
            return out
        rows = tuple(r for r in step.rows if self.is_last or not r.filtered)
        crossed = self._cross_blocks(rows) if self.align else set()
        out.append(self._expect(step, "at_use", {r.slot for r in rows} if self.align else set()))
        out[-1].at_use = {r.slot: self._at_use(r, r.slot in crossed) for r in rows}
        for row in rows:
            self.last_row[(row.req_id, row.life)] = row
        out.append(self._expect(step, "postprocess_state", self._postprocess(step, rows)))
        return out

    def _expect(self, step: Step, phase: str, writable: set[int]) -> Expectation:
        owners = {slot: owner[0] for slot, owner in self.owners.items()}
        return Expectation(step.index, phase, self.buffer.copy(), frozenset(writable), owners)

    def _apply_sampled(self) -> set[int]:
        """Other ranks hear now what the last one sampled `depth` steps ago."""
        if self.is_last:
            return set()
        entry = self.fifo.popleft()
        self.fifo.append(())  # this step's own place
        written = set()
        for row in entry:
            same_life = self.owners.get(row.slot) == (row.req_id, row.life)
            if needs_sample(row) and same_life:
                self._accept(row)
                written.add(row.slot)
        return written

    def _postprocess(self, step: Step, rows: tuple[Row, ...]) -> set[int]:
        if self.is_last:
            for row in rows:
                self._accept(row)
            return {r.slot for r in rows}
        needed = [needs_sample(r) for r in step.rows]
        if any(needed):
            self.fifo[-1] = rows
        if all(needed):
            return set()
        for row in rows:
            self.buffer[row.slot] = 1
        return {r.slot for r in rows}

    def _accept(self, row: Row) -> None:
        accepted = max(row.num_sampled, 1)
        if self.align:
            computed = row.num_computed_tokens + row.num_scheduled_tokens - row.num_rejected
            # The state at the aligned point is saved; where that is the running
            # block, the saved state is the running one.
            at_boundary = computed // self.block_size * self.block_size >= computed - accepted + 1
            if at_boundary and computed // self.block_size - 1 == self.block[row.slot]:
                accepted = 1
        self.buffer[row.slot] = accepted

    def _cross_blocks(self, rows: tuple[Row, ...]) -> set[int]:
        """Slots whose running block moves in this step."""
        crossed = set()
        for row in rows:
            end = row.num_computed_tokens + row.num_scheduled_tokens
            block = (end + self.block_size - 1) // self.block_size - 1
            if self.block[row.slot] >= 0 and block != self.block[row.slot]:
                crossed.add(row.slot)
                self.buffer[row.slot] = 1
            self.block[row.slot] = block
        return crossed

    def _at_use(self, row: Row, crossed: bool) -> int:
        """The accepted count of the owner's previous step, from the requests' story alone."""
        before = self.last_row.get((row.req_id, row.life))
        if before is None or row.is_prefilling or crossed:
            return 1
        return max(before.num_sampled, 1)


def expected_calls(initial: int, max_num_reqs: int, calls: list[tuple]) -> list[np.ndarray]:
    """The buffer after each direct call ``(idx_mapping, num_sampled)`` of a scenario."""
    buffer = np.full(max_num_reqs, initial, dtype=np.int32)
    history = []
    for idx_mapping, num_sampled in calls:
        for row, slot in enumerate(idx_mapping):
            count = num_sampled if isinstance(num_sampled, int) else num_sampled[row]
            if slot >= 0:
                buffer[slot] = max(count, 1)
        history.append(buffer.copy())
    return history
