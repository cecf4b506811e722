"""The built-in state module on CUDA: nothing read back, nothing allocated, capturable."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
SLOTS, ROWS, BLOCK = 16, 6, 4


def _state(align: bool):
    from ppharness.targets import BuiltinMambaState, TargetConfig
    from ppharness.targets.interface import RecurrentStates

    device = torch.device("cuda", torch.cuda.current_device())
    columns = 8
    table = torch.arange(SLOTS * columns, dtype=torch.int32, device=device).view(SLOTS, columns)
    recurrent = RecurrentStates(
        conv=torch.arange(SLOTS * columns * 5, device=device).view(-1, 5),
        temporal=torch.arange(SLOTS * columns, device=device),
        block_table=table, block_size=BLOCK, window=3,
    )  # fmt: skip
    config = TargetConfig(
        max_num_reqs=SLOTS, max_num_batched_tokens=64, max_model_len=64,
        num_speculative_tokens=2, mamba_cache_mode="align" if align else "none",
        mamba_block_size=BLOCK, pp_size=1, pp_rank=0, relay_depth=1, device=device,
        recurrent=recurrent if align else None,
    )  # fmt: skip
    return BuiltinMambaState(config)


class _Step:
    """The inputs of one step, kept in place so that a graph can be replayed on others."""

    def __init__(self, state, dtype):
        device = state.num_accepted_tokens.device
        self.idx_mapping = torch.tensor([3, -1, 0, 15, 7, 2], dtype=dtype, device=device)
        starts = torch.arange(ROWS + 1, dtype=torch.int32, device=device)
        self.query_start_loc = starts
        self.counts = torch.tensor([1, 2, 3, 0, 1, 2], dtype=torch.int32, device=device)
        self.computed = torch.full((SLOTS,), 7, dtype=torch.int32, device=device)
        self.state = state

    def run(self):
        self.state.add_request(3, 0)
        self.state.preprocess_state(self, self.computed)
        self.state.postprocess_state(self.idx_mapping, self.counts, self.computed)
        self.state.postprocess_state(self.idx_mapping, 0, self.computed)
        self.state.postprocess_state(self.idx_mapping, self.counts, self.computed)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_step_neither_waits_nor_allocates(align, dtype):
    step = _Step(_state(align), dtype)
    step.run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        step.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.parametrize("align", [False, True])
def test_step_replays_from_a_graph_with_other_mappings(align):
    graphed, plain = (_Step(_state(align), torch.int32) for _ in range(2))
    graphed.run()
    plain.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graphed.run()
    for seed in range(5):
        torch.manual_seed(seed)
        mapping = torch.randperm(SLOTS)[:ROWS].to(torch.int32)
        mapping[seed] = -1
        counts = torch.randint(0, 4, (ROWS,), dtype=torch.int32)
        for step in (graphed, plain):
            step.idx_mapping.copy_(mapping)
            step.counts.copy_(counts)
        graph.replay()
        plain.run()
        torch.cuda.synchronize()
        assert torch.equal(graphed.state.num_accepted_tokens, plain.state.num_accepted_tokens)
        if align:
            for name in ("conv", "temporal"):
                one, other = (getattr(s.state.align.recurrent, name) for s in (graphed, plain))
                assert torch.equal(one, other)


@pytest.mark.parametrize("rows", [0, 1, 31, 33, 1024, 1025, 70_000])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_fill_and_scatter_equal_plain_python(rows, dtype):
    from ppharness.kernels.num_accepted import fill_num_accepted, scatter_num_accepted

    torch.manual_seed(rows)
    slots = max(rows, 1) + 5
    mapping = torch.randperm(slots)[:rows].to(dtype)
    mapping[::7] = -1
    counts = torch.randint(0, 5, (rows,), dtype=torch.int32)
    kept = mapping >= 0
    want = torch.full((slots,), 9, dtype=torch.int32)
    buffer = want.cuda()
    want[mapping[kept].long()] = 2
    fill_num_accepted(mapping.cuda(), buffer, 2)
    assert torch.equal(buffer.cpu(), want)
    want[mapping[kept].long()] = counts[kept].clamp(min=1)
    scatter_num_accepted(mapping.cuda(), buffer, counts.cuda())
    assert torch.equal(buffer.cpu(), want)
