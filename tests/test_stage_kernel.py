"""The stage's one kernel against the model's torch operations, on whatever runs Triton here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ppharness.oracle.reference import CONV, GAIN
from ppharness.scenario.model import Request, Scenario

K, BLOCK = 3, 4


def _random_states(states, seed):
    made = torch.Generator().manual_seed(seed)
    for tensor in (states.conv, states.temporal):
        tensor.copy_(torch.randint(-(2**62), 2**62, tensor.shape, generator=made))


def _step(made, number):
    lengths = torch.tensor([1, 4, 7, 13])[torch.randint(0, 4, (4,), generator=made)]
    start = lengths.cumsum(0) - lengths
    row = torch.repeat_interleave(torch.arange(4), lengths)
    return SimpleNamespace(
        row=row,
        index=torch.arange(len(row)) - start[row],
        start=start,
        num_scheduled=lengths,
        skip=torch.where(lengths <= K + 1, 0, lengths - 1),
        slot=torch.tensor([2, -1 if number % 3 == 0 else 1, 0, 4]),
        longest=int(lengths.max()),
    )


@pytest.mark.parametrize("mode", ["none", "align"])
def test_kernel_equals_torch(mode):
    # Imported late: another test process may have chosen Triton's mode already.
    from ppharness.kernels import num_accepted
    from ppharness.kernels.stage import run_stage
    from ppharness.pipeline.model import StageModel, make_recurrent_states

    if not num_accepted.INTERPRETED and not torch.cuda.is_available():
        pytest.skip("Triton was imported for a GPU, and there is none")
    device = torch.device("cpu" if num_accepted.INTERPRETED else "cuda")
    scenario = Scenario(
        name="x", max_num_reqs=5, num_speculative_tokens=K, mamba_cache_mode=mode,
        mamba_block_size=BLOCK, requests=(Request(id="a", prompt_tokens=40, max_tokens=8),),
    )  # fmt: skip
    plain = make_recurrent_states(scenario, torch.device("cpu"))
    ours = make_recurrent_states(scenario, device)
    model = StageModel(scenario, 1, plain)
    made = torch.Generator().manual_seed(7)
    for number in range(6):
        step = _step(made, number)
        accepted = torch.randint(0, K + 3, (4,), generator=made, dtype=torch.int32)
        computed = torch.tensor([0, 3, 17])[torch.randint(0, 3, (4,), generator=made)]
        x = torch.randint(-(2**62), 2**62, (len(step.row),), generator=made)
        for states in (plain, ours):
            _random_states(states, number)
        want = model.forward(x, step, accepted, computed)
        per_row = (step.start, step.num_scheduled, step.skip, step.slot, accepted, computed)
        got = run_stage(
            x.to(device),
            tuple(t.to(device) for t in per_row),
            (ours.block_table, ours.conv, ours.temporal),
            (model.decay.to(device), model.inverse.to(device)),
            bias=model.bias, spare=model.spare, num_drafts=K, gain=GAIN, weights=CONV,
            block_size=BLOCK if mode == "align" else 1 << 40, longest=step.longest,
        )  # fmt: skip
        assert torch.equal(got.cpu(), want)
        used = plain.block_table[step.slot[step.slot >= 0]].flatten().long()
        assert torch.equal(ours.conv.cpu()[used], plain.conv[used])
        assert torch.equal(ours.temporal.cpu()[used], plain.temporal[used])
