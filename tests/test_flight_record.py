"""NCCL's record beside the report; the recorder itself needs GPUs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from ppharness.world import flight_record

DUMP = "_dump_nccl_trace"


def test_each_rank_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._distributed_c10d, DUMP, lambda: b"record", raising=False)
    report = str(tmp_path / "r.json")
    for rank in (0, 1):
        flight_record.save_flight_record(report, rank)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {
        "r.json.nccl_trace_rank_0": b"record",
        "r.json.nccl_trace_rank_1": b"record",
    }


def test_without_nccl_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._distributed_c10d, DUMP, raising=False)
    flight_record.save_flight_record(str(tmp_path / "r.json"), 0)
    assert not list(tmp_path.iterdir())


def test_a_dump_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch._C._distributed_c10d, DUMP, lambda: time.sleep(10) or b"", raising=False
    )
    monkeypatch.setattr(flight_record, "_SECONDS", 0.1)
    flight_record.save_flight_record(str(tmp_path / "r.json"), 0)
    assert not list(tmp_path.iterdir())
