"""Whole runs on one shared GPU; ``scripts/gpu_check.sh`` has the long ones."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest
import torch
from worlds import environment, target

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
_WITHOUT_OUR_SETTINGS = (
    "import sys, ppharness.world.gpu_sharing as g; g.prepare_nccl = lambda *a: None; "
    "from ppharness.cli import main; sys.exit(main(sys.argv[1:]))"
)


def run(folder, *args, code=None):
    start = ["-m", "ppharness"] if code is None else ["-c", code]
    done = subprocess.run(
        [sys.executable, *start, "run", "--timeout", "20", "--json", "r.json", *args],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    report = folder / "r.json"
    assert report.exists(), done.stderr[-3000:]
    return done, json.loads(report.read_text())


def test_ranks_share_the_gpu_over_nccl(tmp_path):
    ranks = 2 * torch.cuda.device_count()
    done, report = run(tmp_path, "--nproc", str(ranks), "founding-case")
    assert done.returncode == 0
    assert report["world"]["backend"] == "nccl"
    assert report["world"]["ranks_per_gpu"] == 2
    assert report["world"]["triton"] == "compiled"


def test_where_nccl_does_not_share_it_goes_through_the_host(tmp_path):
    ranks = str(2 * torch.cuda.device_count())
    done, report = run(tmp_path, "--nproc", ranks, "founding-case", code=_WITHOUT_OUR_SETTINGS)
    assert done.returncode == 0
    assert (report["world"]["device"], report["world"]["backend"]) == ("cuda", "gloo")
    assert "NCCL could not share GPUs" in done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["each-step", "each-scenario"])
@pytest.mark.parametrize(
    ("name", "label"), [("DeviceFault", "PP0"), ("DeviceFaultOnLastStage", "PP1")]
)
def test_a_device_fault_names_rank_and_step(tmp_path, name, label, mode):
    done, report = run(
        tmp_path, "--nproc", "2", "--check", mode, "founding-case", "one-token-answer",
        "--target", target(f"gpu_races.py:{name}"),
    )  # fmt: skip
    assert done.returncode == 1
    first = report["scenarios"][0]
    assert first["outcome"] == "crashed"
    assert {f["label"] for f in first["findings"]} == {label}
    assert first["findings"][0]["step"] is not None
    assert "device fault" in first["findings"][0]["message"]


def test_a_store_before_the_buffer_hits_a_canary(tmp_path):
    _, report = run(
        tmp_path, "--nproc", "2", "founding-case",
        "--target", target("gpu_races.py:StoresBeforeBuffer"),
    )  # fmt: skip
    assert {f["kind"] for s in report["scenarios"] for f in s["findings"]} == {"stray_write"}


@pytest.mark.parametrize("name", ["ForgetsWaitStream", "ForgetsEvent"])
def test_perturb_shows_a_missing_wait(tmp_path, name):
    done, _ = run(
        tmp_path, "--nproc", "2", "--perturb", "1", "founding-case-long", "founding-case",
        "--target", target(f"gpu_races.py:{name}"),
    )  # fmt: skip
    assert done.returncode in (1, 3)


def test_a_hang_leaves_the_flight_record_of_the_ranks_that_answer(tmp_path):
    done, report = run(tmp_path, "--nproc", "2", "--inject", "stall@1:2", "founding-case")
    assert done.returncode == 3
    assert any("r.json.flight_record_rank_" in note for note in report["notes"])
    record = pickle.loads((tmp_path / "r.json.flight_record_rank_0").read_bytes())
    assert record["entries"], "no collective was recorded"
