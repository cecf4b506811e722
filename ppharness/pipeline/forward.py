"""A step's batch, forward and sample on one rank: what the harness itself does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from ..oracle.reference import SequentialReference
from ..scenario.model import Scenario
from ..scenario.schedule import Row, Step
from ..targets.interface import InputBatch, RecurrentStates, RequestSlots
from ..world.world import World
from .batch import make_input_batch
from .checks import CheckList
from .faults import Faults
from .model import StageModel
from .step_tensors import StepTensorMaker, StepTensors, row_columns
from .tokens import TokenJudge

_HIDDEN_WIDTH = 4  # request number, position, stages passed, value


class Forward:
    """One stage's layers, with hidden states really sent from stage to stage."""

    def __init__(
        self,
        scenario: Scenario,
        schedule: list[Step],
        world: World,
        checks: CheckList,
        faults: Faults,
        states: RecurrentStates,
        *,
        seed: int,
        mapping_dtype: torch.dtype,
    ):
        self.world, self.checks, self.faults = world, checks, faults
        self.k = scenario.num_speculative_tokens
        self.is_last = world.pp_rank == world.pp_size - 1
        self.mapping_dtype = mapping_dtype
        self.maker = StepTensorMaker(self.k, world.device)
        self.model = StageModel(scenario, world.pp_rank, states)
        prompts = [r.prompt_tokens for r in scenario.requests]
        self.reference = SequentialReference(prompts, num_stages=world.pp_size, seed=seed)
        self.tokens = TokenJudge(checks, self.reference, num_stages=world.pp_size)
        self.next_row = _next_rows(schedule)
        longest = scenario.max_num_batched_tokens
        self.passed = torch.full((longest,), world.pp_rank + 1, device=world.device)
        self.drift = 0  # of the host's mirror: a fault on purpose
        self.mismatch = False  # the stage before or after runs another batch

    def build(self, step: Step, slots: RequestSlots) -> tuple[InputBatch, StepTensors]:
        """The batch as this rank sees it; rows aborted in flight are at -1 but on the last."""
        self.world.at(step.index, "build the batch")
        columns = row_columns(step)
        mapping = columns["slot"].copy()
        if not self.is_last:
            mapping[[r.filtered for r in step.rows]] = -1
        tensors = self.maker.make(columns, mapping, self._input_ids(step))
        num_computed = slots.num_computed_tokens[tensors.slot]
        if not tensors.all_have_slots:
            known = tensors.block_row >= 0
            num_computed = torch.where(known, num_computed, tensors.num_computed)
        self.drift += self.faults.take("drift", step.index)
        host = (columns["num_computed_tokens_host"] + self.drift).astype(np.int32)
        batch = make_input_batch(
            step, columns, mapping, host, self.mapping_dtype, tensors, num_computed
        )
        self.note(step, host)
        return batch, tensors

    def note(self, step: Step, host: np.ndarray | None = None) -> None:
        """Writes the batch into the ledger: all ranks must run the same."""
        counts = [] if host is None else host.tolist()
        self.world.note_batch(batch_text(step, counts), step.num_tokens)

    def run(
        self,
        step: Step,
        batch: InputBatch,
        tensors: StepTensors,
        slots: RequestSlots,
        num_accepted: torch.Tensor,
    ) -> torch.Tensor:
        """Receives, runs this stage's layers, sends on; ``[num_tokens]`` for the sampler."""
        world, stage = self.world, self.world.pp_rank
        world.at(step.index, "forward")
        own_view = partial(self.tokens.positions, step=step, filtered=not self.is_last)
        self.checks.record(batch.positions, own_view, copy=False)
        x = self._first_input(step, tensors, slots) if stage == 0 else self._receive(step)
        x = self.model.forward(x, tensors, num_accepted, batch.positions[tensors.shape.start])
        kept = [number for number, row in enumerate(step.rows) if not row.filtered]
        if kept and self.faults.take("corrupt-hidden", step.index):
            x[tensors.shape.start[kept[0]]] ^= 1 << 40  # its first token: never a refused draft
        went_out = partial(self.tokens.sent, step=step, stage=stage + 1)
        self.checks.record(x, went_out, copy=False)
        if not self.is_last:
            passed = self.passed[: len(x)]
            self._send(torch.stack([tensors.req_num, batch.positions, passed, x], dim=1))
        return x

    def sample(self, step: Step, x: torch.Tensor, tensors: StepTensors) -> torch.Tensor:
        """``[num_reqs, 1 or K + 1]`` int64 tokens on the last rank."""
        sampled = self.model.sample(x, tensors)
        self.checks.record(sampled, partial(self.tokens.sampled, step=step))
        return sampled

    def next_drafts(self, step: Step) -> torch.Tensor:
        """``[num_reqs, K]`` int64 the drafter's proposals for each row's next step."""
        drafts = torch.zeros(len(step.rows), self.k, dtype=torch.int64)
        for number, row in enumerate(step.rows):
            after = self.next_row.get((row.req_id, row.life, step.index))
            if after is not None and after.num_draft_tokens:
                drafts[number, : after.num_draft_tokens] = torch.tensor(self.drafts_of(after))
        return drafts

    def check_drafts(self, step: Step, held: torch.Tensor, tensors: StepTensors) -> None:
        """Compares the draft tokens that this rank holds with those that were proposed.

        Args:
            held: ``[max_num_reqs, K]`` per slot, of a target that relays drafts.
        """
        if any(r.num_draft_tokens for r in step.rows):
            mine = held[tensors.slot]
            want = [self.drafts_of(r) for r in step.rows]
            judge = partial(self.tokens.drafts, step=step, want=want)
            self.checks.record(mine, judge, copy=False)  # indexing has copied it

    def drafts_of(self, row: Row) -> list[int]:
        """A verify row's drafts: right as far as they will be accepted, then wrong."""
        start = row.num_computed_tokens + 1
        tokens = self.reference.token_ids(row.req_num, start, start + row.num_draft_tokens)
        return [t if n + 1 < row.num_sampled else t ^ 1 for n, t in enumerate(tokens)]

    def _first_input(self, step: Step, tensors: StepTensors, slots: RequestSlots) -> torch.Tensor:
        ids = tensors.input_ids
        if len(tensors.decode_start):
            ids[tensors.decode_start] = slots.last_sampled_tokens[tensors.decode_slot].view(-1)
        self.checks.record(ids, partial(self.tokens.inputs, step=step), copy=False)
        return self.model.embed(ids)

    def _receive(self, step: Step) -> torch.Tensor:
        world, stage = self.world, self.world.pp_rank
        coming = world.tokens_of_peer(-1)
        if coming is None or coming == step.num_tokens:
            hidden = self._empty(step.num_tokens)
            world.recv_hidden(hidden)
            came_in = partial(self.tokens.received, step=step, stage=stage)
            self.checks.record(hidden, came_in, copy=False)
            return hidden[:, 3]
        self.mismatch = True  # the ledger has both sides and tells
        if coming:
            world.recv_hidden(self._empty(coming))
        return torch.zeros(step.num_tokens, dtype=torch.int64, device=world.device)

    def _send(self, hidden: torch.Tensor) -> None:
        if self.mismatch and self.world.tokens_of_peer(1) == 0:
            return  # nobody will take them
        self.world.send_hidden(hidden)

    def _empty(self, num_tokens: int) -> torch.Tensor:
        return torch.empty(num_tokens, _HIDDEN_WIDTH, dtype=torch.int64, device=self.world.device)

    def _input_ids(self, step: Step) -> np.ndarray:
        """``[num_tokens]`` prompt tokens and drafts; only the first stage embeds them."""
        if self.world.pp_rank:
            return np.zeros(step.num_tokens, dtype=np.int64)
        ids: list[int] = []
        for row in step.rows:
            start = row.num_computed_tokens
            stop = start + row.num_scheduled_tokens - row.num_draft_tokens
            ids.extend(self.reference.token_ids(row.req_num, start, stop))
            ids.extend(self.drafts_of(row))
        return np.array(ids, dtype=np.int64)


def batch_text(step: Step, computed: Sequence[int] | None = None) -> str:
    """A step's rows as the ledger has them, each with the tokens `computed` before it.

    Args:
        computed: ``[num_reqs]`` as a rank's host has them; by default as the schedule does.
    """
    if computed is None:
        computed = [r.num_computed_tokens_host for r in step.rows]
    return ", ".join(
        f"{r.req_id} at {n}+{r.num_scheduled_tokens}"
        for r, n in zip(step.rows, computed, strict=True)
    )


def _next_rows(schedule: list[Step]) -> dict[tuple[str, int, int], Row]:
    """(request, life, step of a row) -> the request's row after that."""
    after: dict[tuple[str, int, int], Row] = {}
    last: dict[tuple[str, int], int] = {}
    for step in schedule:
        for row in step.rows:
            life = (row.req_id, row.life)
            if life in last:
                after[(*life, last[life])] = row
            last[life] = step.index
    return after
