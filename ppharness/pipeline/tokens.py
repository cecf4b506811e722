"""Judges what flows between ranks: hidden states and tokens, against the reference."""

from __future__ import annotations

import numpy as np

from ..oracle.reference import SequentialReference
from ..scenario.schedule import Row, Step
from .checks import CheckList

HIDDEN_FIELDS = ("request number", "position", "stages passed")


class TokenJudge:
    """Divergence from one process that runs each request alone."""

    def __init__(self, checks: CheckList, reference: SequentialReference, *, num_stages: int):
        self.checks = checks
        self.reference = reference
        self.num_stages = num_stages
        self._diverged: set[int] = set()  # requests whose values were wrong already
        self._marks: tuple[int, np.ndarray] | None = None  # of the last step asked for

    def positions(self, positions: np.ndarray, step: Step, filtered: bool) -> None:
        """``[num_tokens]`` positions in the batch that a rank built.

        Args:
            filtered: whether this rank leaves out rows that were aborted in flight.
        """
        self._check_marks(positions[:, None], step, slice(1, 2), filtered)

    def received(self, hidden: np.ndarray, step: Step, stage: int) -> None:
        """``[num_tokens, 4]`` hidden states that came in after `stage` stages."""
        self._marks_of(step)[:, 2] = stage
        self._check_marks(hidden[:, :3], step, slice(3), filtered=True)
        self._check_values(hidden[:, 3], step, stage, "came in")

    def sent(self, values: np.ndarray, step: Step, stage: int) -> None:
        """``[num_tokens]`` hidden values as they go out after `stage` stages."""
        self._check_values(values, step, stage, "went out")

    def _check_marks(self, marks: np.ndarray, step: Step, fields: slice, filtered: bool) -> None:
        self.checks.num_checks += marks.size
        expected = self._marks_of(step)[:, fields]
        wrong = marks != expected
        if not wrong.any():
            return
        end = 0
        for row in step.rows:
            start, end = end, end + row.num_scheduled_tokens
            part, want, bad = marks[start:end], expected[start:end], wrong[start:end]
            if bad.any() and not (filtered and row.filtered):
                token, field = np.argwhere(bad)[0]
                self.checks.add(
                    "divergence", step.index, "forward",
                    f"hidden state of request {row.req_id}, token {token} of its row: "
                    f"{HIDDEN_FIELDS[fields][field]} is {part[token, field]}, "
                    f"expected {want[token, field]}",
                    req_id=row.req_id, slot=row.slot,
                    expected=int(want[token, field]), actual=int(part[token, field]),
                )  # fmt: skip

    def _marks_of(self, step: Step) -> np.ndarray:
        """``[num_tokens, 3]`` marks that a step's tokens must carry; stages are filled in later."""
        if self._marks is None or self._marks[0] != step.index:
            counts = [r.num_scheduled_tokens for r in step.rows]
            marks = np.zeros((sum(counts), 3), dtype=np.int64)
            marks[:, 0] = np.repeat([r.req_num for r in step.rows], counts)
            marks[:, 1] = np.concatenate(
                [r.num_computed_tokens + np.arange(r.num_scheduled_tokens) for r in step.rows]
            )
            self._marks = (step.index, marks)
        return self._marks[1]

    def inputs(self, input_ids: np.ndarray, step: Step) -> None:
        """``[num_tokens]`` token ids that the first stage embeds."""
        first = np.cumsum([0] + [r.num_scheduled_tokens for r in step.rows])
        for number, row in enumerate(step.rows):
            if row.is_prefilling or row.filtered:
                continue
            self.checks.num_checks += 1
            actual = int(input_ids[first[number]])
            position = row.num_computed_tokens
            want = self.reference.token_ids(row.req_num, position, position + 1)[0]
            if actual != want:
                self.checks.add(
                    "divergence", step.index, "forward",
                    f"request {row.req_id} goes on from token {actual} at position {position}, "
                    f"the sequential reference from {want}",
                    req_id=row.req_id, slot=row.slot, expected=want, actual=actual,
                )  # fmt: skip

    def sampled(self, tokens: np.ndarray, step: Step) -> None:
        """``[num_reqs, width]`` tokens that the last stage sampled."""
        for row, got in zip(step.rows, tokens, strict=True):
            if row.filtered:
                continue
            want = self.sampled_by_reference(row)
            self.checks.num_checks += len(want)
            for place, (actual, expected) in enumerate(zip(got.tolist(), want, strict=False)):
                if actual != expected:
                    position = row.num_computed_tokens + row.num_scheduled_tokens
                    position += place - row.num_draft_tokens
                    self.checks.add(
                        "divergence", step.index, "relay",
                        f"request {row.req_id} sampled token {actual} for position {position}, "
                        f"the sequential reference {expected}",
                        req_id=row.req_id, slot=row.slot, expected=expected, actual=actual,
                    )  # fmt: skip
                    break

    def heard(self, heard: np.ndarray, source: Step, now: Step) -> None:
        """What another rank hears of step `source`; rows at -1 are not judged.

        Args:
            heard: ``[num_reqs, 3 + width]``: slot, num_sampled, num_rejected, tokens.
        """
        mapping, counts, tokens = heard[:, 0], heard[:, 1:3].T, heard[:, 3:]
        for number, row in enumerate(source.rows):
            if number >= len(mapping) or mapping[number] < 0 or row.filtered:
                continue
            self.checks.num_checks += 3
            if mapping[number] != row.slot:
                self.checks.add(
                    "divergence", now.index, "apply_sampled",
                    f"the sample of request {row.req_id} of step {source.index} goes to slot "
                    f"{mapping[number]}, its slot is {row.slot}",
                    req_id=row.req_id,
                    slot=row.slot, expected=row.slot, actual=int(mapping[number]),
                )  # fmt: skip
                continue
            for name, got, want in (
                ("num_sampled", counts[0, number], row.num_sampled),
                ("num_rejected", counts[1, number], row.num_rejected),
            ):
                if got != want:
                    self.checks.add(
                        "divergence", now.index, "apply_sampled",
                        f"{name} of request {row.req_id} from step {source.index} arrived as "
                        f"{got}, the last rank had {want}",
                        req_id=row.req_id,
                    slot=row.slot, expected=want, actual=int(got),
                    )  # fmt: skip
            want_tokens = self.sampled_by_reference(row)
            got_tokens = tokens[number, : row.num_sampled].tolist()
            if got_tokens != want_tokens[: len(got_tokens)]:
                wrong = next(i for i, t in enumerate(got_tokens) if t != want_tokens[i])
                self.checks.add(
                    "divergence", now.index, "apply_sampled",
                    f"token {wrong + 1} of {row.num_sampled} sampled for request {row.req_id} in "
                    f"step {source.index} arrived as {got_tokens[wrong]}, "
                    f"the sequential reference has {want_tokens[wrong]}",
                    req_id=row.req_id,
                    slot=row.slot, expected=want_tokens[wrong], actual=got_tokens[wrong],
                )  # fmt: skip

    def _check_values(self, got: np.ndarray, step: Step, stage: int, moved: str) -> None:
        """``[num_tokens]`` hidden values after `stage` stages; each request's first fault."""
        first = 0
        for row in step.rows:
            part = got[first : first + row.num_scheduled_tokens]
            first += row.num_scheduled_tokens
            if row.filtered or row.req_num in self._diverged:
                continue
            # Drafts that will be refused are not in the reference.
            count = row.num_sampled if row.num_draft_tokens else row.num_scheduled_tokens
            start = row.num_computed_tokens
            want = self.reference.hidden(row.req_num, stage, start, start + count)
            self.checks.num_checks += count
            bad = np.flatnonzero(part[:count] != want)
            if len(bad):
                self._diverged.add(row.req_num)
                self.checks.add(
                    "divergence", step.index, "forward",
                    f"hidden value of request {row.req_id} at position {start + bad[0]}, after "
                    f"{stage} of {self.num_stages} stages, {moved} other than in the sequential "
                    "reference",
                    req_id=row.req_id, slot=row.slot,
                )  # fmt: skip

    def counts(self, told: np.ndarray, step: Step) -> None:
        """``[num_reqs]`` num_sampled as the last rank hands it to the relay."""
        for row, got in zip(step.rows, told.tolist(), strict=True):
            self.checks.num_checks += 1
            if got != row.num_sampled:
                self.checks.add(
                    "divergence", step.index, "relay",
                    f"num_sampled of request {row.req_id} goes to the relay as {got}, "
                    f"{row.num_sampled} were sampled",
                    req_id=row.req_id, slot=row.slot, expected=row.num_sampled, actual=got,
                )  # fmt: skip

    def drafts(self, held: np.ndarray, step: Step, want: list[list[int]]) -> None:
        """``[num_reqs, K]`` draft tokens that this rank holds for a verify step."""
        for row, got, proposed in zip(step.rows, held.tolist(), want, strict=True):
            self.checks.num_checks += len(proposed)
            if not row.filtered and got[: len(proposed)] != proposed:
                self.checks.add(
                    "divergence", step.index, "forward",
                    f"request {row.req_id} verifies the drafts {got[: len(proposed)]} here, "
                    f"the last rank proposed {proposed}",
                    req_id=row.req_id, slot=row.slot,
                    expected=proposed[0], actual=got[0],
                )  # fmt: skip

    def sampled_by_reference(self, row: Row) -> list[int]:
        """``[num_sampled]`` tokens that a row must yield."""
        end = row.num_computed_tokens + row.num_scheduled_tokens - row.num_draft_tokens
        return self.reference.token_ids(row.req_num, end, end + row.num_sampled)
