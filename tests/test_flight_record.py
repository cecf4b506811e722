"""What the communicators did, beside the report of a hang; on a CPU of gloo's."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest
import torch
from worlds import JSON, read_report, run_fresh

from ppharness.world import flight_record

needs_recorder = pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"),
    reason="this torch records only NCCL",
)
SHORT = """
name: short
requests: [{id: a, prompt_tokens: 5, max_tokens: 6}]
"""


@needs_recorder
def test_every_rank_that_answers_leaves_its_record(tmp_path: Path) -> None:
    (tmp_path / "short.yaml").write_text(SHORT)
    run = run_fresh(
        tmp_path, "run", "--nproc", "3", "--timeout", "4", "--inject", "kill@1:3", "--json", JSON,
        "short.yaml", env={"TORCH_FR_BUFFER_SIZE": "100"},
    )  # fmt: skip
    assert run.code == 3
    prefix = f"{JSON}.flight_record_rank_"
    assert sorted(p.name for p in tmp_path.glob(f"{prefix}*")) == [f"{prefix}0", f"{prefix}2"]
    for rank in (0, 2):
        record = pickle.loads((tmp_path / f"{prefix}{rank}").read_bytes())
        assert any("broadcast" in entry["profiling_name"] for entry in record["entries"])
    report = read_report(tmp_path)
    assert report is not None and any(prefix in note for note in report["notes"])


def test_without_a_recorder_there_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_record, "_recorder", object())
    assert not flight_record.save_flight_record(str(tmp_path / "r.json"), 0)
    assert not list(tmp_path.iterdir())


def test_a_dump_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Recorder:
        @staticmethod
        def _dump_nccl_trace(includeStackTraces: bool) -> bytes:
            time.sleep(10)
            return pickle.dumps({"entries": [{}]})

    monkeypatch.setattr(flight_record, "_recorder", Recorder())
    monkeypatch.setattr(flight_record, "_SECONDS", 0.1)
    assert not flight_record.save_flight_record(str(tmp_path / "r.json"), 0)
    assert not list(tmp_path.iterdir())


def test_without_the_stacks_where_they_take_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Recorder:
        @staticmethod
        def _dump_nccl_trace(includeStackTraces: bool) -> bytes:
            if includeStackTraces:
                time.sleep(10)
            return pickle.dumps({"entries": [{"with_stacks": includeStackTraces}]})

    monkeypatch.setattr(flight_record, "_recorder", Recorder())
    monkeypatch.setattr(flight_record, "_SECONDS", 0.3)
    assert flight_record.save_flight_record(str(tmp_path / "r.json"), 0)
    (record,) = tmp_path.iterdir()
    assert record.name == "r.json.flight_record_rank_0"
    assert pickle.loads(record.read_bytes()) == {"entries": [{"with_stacks": False}]}
