"""Compares recorded buffers and tokens with what the oracle expects."""

from __future__ import annotations

import numpy as np

from ..findings import Phase
from ..oracle.buffers import UNOWNED, Expectation
from .checks import CANARY, NUM_CANARIES, POISON, CheckList

_PHASE_TEXT = {
    "apply_sampled": "after applying what was sampled",
    "free": "after the frees",
    "add_request": "after the adds",
    "at_use": "where the forward reads it",
    "postprocess_state": "after postprocess_state",
    "drain": "after the pipeline drained",
}


class BufferJudge:
    """Follows one rank's buffer from snapshot to snapshot."""

    def __init__(self, checks: CheckList, *, max_accepted: int, exact: bool):
        self.checks = checks
        self.max_accepted = max_accepted  # K + 1
        self.exact = exact
        self._reported: dict[int, int] = {}  # slot -> wrong value already reported
        self._canaries = np.full(NUM_CANARIES, CANARY, dtype=np.int64)
        self._before: np.ndarray | None = None
        # slot -> (step, phase, value before) of the last change by a phase that may not write it
        self._trespass: dict[int, tuple[int, Phase, int]] = {}

    def judge(self, snapshot: np.ndarray, expected: Expectation) -> None:
        """One snapshot: canaries, unowned slots, range, count at use, exact buffer."""
        buffer = snapshot[NUM_CANARIES:-NUM_CANARIES].astype(np.int64)
        self.checks.num_checks += len(buffer) + len(expected.at_use)
        if self._all_as_expected(snapshot, expected):
            self._before = buffer
            return
        phase: Phase = expected.phase  # type: ignore[assignment]
        # What the forward reads is looked at right after preprocess_state, which wrote it.
        self._written_in: Phase = "preprocess_state" if phase == "at_use" else phase
        self._judge_canaries(snapshot, expected.step, phase)
        unowned = expected.exact == UNOWNED
        self._note_trespass(buffer, expected, phase)
        wrong = unowned & (buffer != POISON)
        wrong |= ~unowned & ((buffer < 1) | (buffer > self.max_accepted))
        if self.exact:
            wrong |= ~unowned & (buffer != expected.exact)
        for slot in np.flatnonzero(wrong).tolist():
            self._report(slot, int(buffer[slot]), bool(unowned[slot]), expected, phase)
        for slot, count in expected.at_use.items():
            if buffer[slot] != count:
                self._report_at_use(slot, int(buffer[slot]), count, expected, phase)
        right_again = [
            slot
            for slot in self._reported
            if 0 <= slot < len(buffer) and not wrong[slot] and slot not in expected.at_use
        ]
        for slot in right_again:
            del self._reported[slot]
        self._before = buffer

    def _all_as_expected(self, snapshot: np.ndarray, expected: Expectation) -> bool:
        """Whether there is nothing to look at closer: to the letter, and nothing open from before.

        That a target need not follow the letter makes no difference: who does is right.
        """
        if self._reported or self._trespass:
            return False
        inner = np.where(expected.exact == UNOWNED, POISON, expected.exact)
        wanted = np.concatenate([self._canaries, inner, self._canaries])
        at_use = all(expected.exact[slot] == count for slot, count in expected.at_use.items())
        return at_use and np.array_equal(snapshot, wanted)

    def _note_trespass(self, buffer: np.ndarray, expected: Expectation, phase: Phase) -> None:
        if self._before is None:
            return
        for slot in np.flatnonzero(buffer != self._before).tolist():
            if slot in expected.writable:
                self._trespass.pop(slot, None)
            elif slot in expected.owners:
                step = expected.step
                self._trespass[slot] = (step, self._written_in, int(self._before[slot]))

    def _report(
        self, slot: int, actual: int, unowned: bool, expected: Expectation, phase: Phase
    ) -> None:
        if self._reported.get(slot) == actual:
            return
        self._reported[slot] = actual
        step, when = expected.step, _PHASE_TEXT[phase]
        if unowned:
            self.checks.add(
                "stray_write", step, self._written_in,
                f"slot {slot} belongs to no request and may not be written: "
                f"{when} it holds {_show(actual)}",
                slot=slot, expected=POISON, actual=actual,
            )  # fmt: skip
            return
        owner = expected.owners[slot]
        want = int(expected.exact[slot])
        if slot in self._trespass and slot not in expected.writable and self.exact:
            _, _, before = self._trespass[slot]
            self.checks.add(
                "stray_write", step, self._written_in,
                f"slot {slot} of request {owner} may not be written in this phase: "
                f"{when} it went from {_show(before)} to {_show(actual)}",
                req_id=owner, slot=slot, expected=want, actual=actual,
            )  # fmt: skip
        elif self.exact:
            self.checks.add(
                "mismatch", step, phase,
                f"slot {slot} of request {owner}: expected {want}, got {_show(actual)} {when}",
                req_id=owner, slot=slot, expected=want, actual=actual,
            )  # fmt: skip
        else:
            self.checks.add(
                "mismatch", step, phase,
                f"slot {slot} of request {owner} holds {_show(actual)} {when}; "
                f"allowed: 1 to {self.max_accepted}",
                req_id=owner, slot=slot, expected=expected.at_use.get(slot), actual=actual,
            )  # fmt: skip

    def _report_at_use(
        self, slot: int, actual: int, want: int, expected: Expectation, phase: Phase
    ) -> None:
        if self._reported.get(slot) == actual:
            return
        self._reported[slot] = actual
        owner = expected.owners[slot]
        if slot in self._trespass:
            step, where, before = self._trespass[slot]
            self.checks.add(
                "stray_write", step, where,
                f"slot {slot} of request {owner} may not be written in this phase, but it went "
                f"from {_show(before)} to {_show(actual)}; the forward of step "
                f"{expected.step} needed {want}",
                req_id=owner, slot=slot, expected=want, actual=actual,
            )  # fmt: skip
            return
        self.checks.add(
            "mismatch", expected.step, phase,
            f"slot {slot} of request {owner}: the forward needs {want}, "
            f"the buffer holds {_show(actual)}",
            req_id=owner, slot=slot, expected=want, actual=actual,
        )  # fmt: skip

    def _judge_canaries(self, snapshot: np.ndarray, step: int, phase: Phase) -> None:
        size = len(snapshot) - 2 * NUM_CANARIES
        for first, part in (
            (-NUM_CANARIES, snapshot[:NUM_CANARIES]),
            (size, snapshot[-NUM_CANARIES:]),
        ):
            for offset in np.flatnonzero(part != self._canaries):
                slot, actual = first + int(offset), int(part[offset])
                if self._reported.get(slot) != actual:
                    self._reported[slot] = actual
                    self.checks.add(
                        "stray_write", step, self._written_in,
                        f"memory just outside the buffer, at slot {slot}, was written: "
                        f"it holds {actual}",
                        slot=slot, expected=CANARY, actual=actual,
                    )  # fmt: skip


def _show(value: int) -> str:
    """A count as a person reads it; the harness's own marks by name."""
    if value == POISON:
        return f"{value} (the mark of an unowned slot)"
    if POISON < value <= POISON + 70_000:
        return f"{value} (what the last owner of slot {value - POISON - 1} left)"
    return str(value)
