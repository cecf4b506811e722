"""The batched stage model against the sequential reference, in one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ppharness.oracle.reference import SequentialReference
from ppharness.pipeline.model import StageModel, make_recurrent_states
from ppharness.pipeline.step_tensors import StepTensorMaker, StepTensors, row_columns
from ppharness.scenario.model import Request, Scenario
from ppharness.scenario.schedule import Step, build_schedule

CPU = torch.device("cpu")


def scenario_of(prompts: list[int], k: int, budget: int, accepted: list[int]) -> Scenario:
    return Scenario(
        name="model",
        max_num_reqs=len(prompts),
        max_num_batched_tokens=budget,
        num_speculative_tokens=k,
        requests=tuple(
            Request(
                id=f"r{n}",
                prompt_tokens=p,
                max_tokens=7,
                accept=tuple(min(a, k) for a in accepted) if k else (),
            )
            for n, p in enumerate(prompts)
        ),
    )


class Pipeline:
    """All stages in one process, with counts that are right."""

    def __init__(self, scenario: Scenario, num_stages: int):
        self.k = scenario.num_speculative_tokens
        prompts = [r.prompt_tokens for r in scenario.requests]
        self.reference = SequentialReference(prompts, num_stages=num_stages, seed=3)
        self.models = [
            StageModel(scenario, stage, make_recurrent_states(scenario, CPU))
            for stage in range(num_stages)
        ]
        self.maker = StepTensorMaker(self.k, CPU)
        self.accepted = torch.ones(scenario.max_num_reqs, dtype=torch.int32)

    def tensors(self, step: Step) -> StepTensors:
        ids: list[int] = []
        for row in step.rows:  # refused drafts are wrong tokens
            start = row.num_computed_tokens
            right = row.num_sampled if row.num_draft_tokens else row.num_scheduled_tokens
            ids += self.reference.token_ids(row.req_num, start, start + right)
            ids += [1] * (row.num_scheduled_tokens - right)
        columns = row_columns(step)
        return self.maker.make(columns, columns["slot"], np.array(ids))

    def check(self, step: Step) -> None:
        """Runs a step through all stages; every token's value is the reference's."""
        tensors = self.tensors(step)
        x = self.models[0].embed(tensors.input_ids)
        for stage, model in enumerate(self.models, start=1):
            x = model.forward(x, tensors, self.accepted, tensors.num_computed)
            first = 0
            for row in step.rows:
                count = row.num_sampled if row.num_draft_tokens else row.num_scheduled_tokens
                start = row.num_computed_tokens
                want = self.reference.hidden(row.req_num, stage, start, start + count)
                assert x[first : first + count].tolist() == want.tolist()
                first += row.num_scheduled_tokens
        sampled = self.models[-1].sample(x, tensors)
        for row, got in zip(step.rows, sampled.tolist(), strict=True):
            end = row.num_computed_tokens + row.num_scheduled_tokens - row.num_draft_tokens
            want_tokens = self.reference.token_ids(row.req_num, end, end + row.num_sampled)
            assert got == want_tokens + [0] * (len(got) - row.num_sampled)
            self.accepted[row.slot] = max(row.num_sampled, 1)


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    k=st.integers(0, 3),
    budget=st.integers(8, 24),
    accepted=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    num_stages=st.integers(1, 3),
)
def test_every_stage_of_every_batch_is_as_in_the_reference(
    prompts: list[int], k: int, budget: int, accepted: list[int], num_stages: int
) -> None:
    scenario = scenario_of(prompts, k, budget, accepted)
    pipeline = Pipeline(scenario, num_stages)
    for step in build_schedule(scenario, num_stages):
        if step.rows:
            pipeline.check(step)


def test_a_wrong_count_changes_the_tokens() -> None:
    scenario = scenario_of([9], 3, 16, [1])
    pipeline = Pipeline(scenario, 2)
    steps = [s for s in build_schedule(scenario, 2) if s.rows]
    pipeline.check(steps[0])
    pipeline.check(steps[1])
    pipeline.accepted[steps[2].rows[0].slot] += 1
    with pytest.raises(AssertionError):
        pipeline.check(steps[2])


def test_rows_without_a_slot_leave_the_others_alone() -> None:
    scenario = scenario_of([9, 5], 0, 16, [0])
    pipeline = Pipeline(scenario, 1)
    model, (step, *_) = pipeline.models[0], build_schedule(scenario, 1)
    columns = row_columns(step)
    slots = columns["slot"].copy()
    slots[0] = -1
    ids = np.arange(step.num_tokens)
    tensors = pipeline.maker.make(columns, slots, ids)
    before = model.states.conv.clone()
    model.forward(torch.from_numpy(ids), tensors, pipeline.accepted, tensors.num_computed)
    touched = {int(b) for b in (model.states.conv != before).any(1).nonzero()}
    own = model.states.block_table[columns["slot"][1], 0]
    assert touched == {int(own), len(before) - 1}  # its own block and the spare one
    assert not tensors.all_have_slots and tensors.slot.tolist()[0] == 0


def test_batches_of_one_shape_share_it_and_what_a_target_may_write_is_never_shared() -> None:
    scenario = scenario_of([4, 4], 0, 16, [0])
    pipeline = Pipeline(scenario, 1)
    decodes = [s for s in build_schedule(scenario, 1) if s.rows and not s.rows[0].is_prefilling]
    first, second = pipeline.tensors(decodes[0]), pipeline.tensors(decodes[1])
    assert first.shape is second.shape
    for name in ("query_start_loc", "input_ids_32", "num_sampled", "num_rejected"):
        one, other = getattr(first, name), getattr(second, name)
        assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
        assert (one.data_ptr() - one.untyped_storage().data_ptr()) % 16 == 0
        assert one.dtype == torch.int32
