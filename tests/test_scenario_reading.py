"""Scenario files: what reads, what is no file to read, and the same checks in Python."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from scenario_files import FULL, REQUESTS, refused, write

from ppharness.scenario import Request, Scenario, ScenarioError, read_scenario_file

CALLS = """\
name: scalar-fill-skips-filtered-rows
max_num_reqs: 4
initial: 9
calls:
  - {idx_mapping: [2, -1, 0], num_sampled: 0}
  - {idx_mapping: [1, -1], num_sampled: [3, 5]}
"""


def test_full_scenario(tmp_path: Path) -> None:
    path = write(tmp_path, FULL)
    (scenario,) = read_scenario_file(path)
    assert scenario.name == "preempted-then-resumed"
    assert scenario.requests[0].accept == (2, 0, 3)
    assert [e.in_flight for e in scenario.events] == [False, True, False]
    assert scenario.idx_mapping_dtype == "int32"
    assert scenario.initial is None
    assert scenario.file == str(path)


def test_calls(tmp_path: Path) -> None:
    (scenario,) = read_scenario_file(write(tmp_path, CALLS))
    assert scenario.initial == 9
    assert scenario.calls[0].idx_mapping == (2, -1, 0)
    assert [call.num_sampled for call in scenario.calls] == [0, (3, 5)]


def test_defaults(tmp_path: Path) -> None:
    text = "name: x\n" + REQUESTS + "---\nname: y\ncalls: [{idx_mapping: [0], num_sampled: 2}]\n"
    first, second = read_scenario_file(write(tmp_path, text))
    assert (first.max_num_reqs, first.max_num_batched_tokens, first.max_model_len) == (
        8,
        64,
        131072,
    )
    assert (first.num_speculative_tokens, first.schedule, first.mamba_cache_mode) == (
        0,
        "async",
        "none",
    )
    assert (first.mamba_block_size, first.idx_mapping_dtype, first.pp_size) == (16, None, None)
    assert first.initial is None and second.initial == 1


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: x\n" + REQUESTS + "---\n",  # an empty document behind
        "\ufeffname: x\n" + REQUESTS,
        ("name: x\n" + REQUESTS).replace("\n", "\r\n"),
        "name: x\nmax_num_reqs: 1_000\n" + REQUESTS,
        "name: &unused x\n" + REQUESTS,
        "name: x\nmamba_block_size: 32\n" + REQUESTS,  # without align
        "name: x\nrequests:\n  - {id: a, prompt_tokens: 5, max_tokens: 3, accept: [0, 0]}\n",
        "name: x\nmax_model_len: 8\n" + REQUESTS,
        "name: x\ndescription: >\n  Two\n  lines.\n" + REQUESTS,
        "name: x\nrequests: [{id: 12:30, prompt_tokens: 5, max_tokens: 3}]\n",
        "name: x\nevents: []\ncalls: [{idx_mapping: [], num_sampled: []}]\n",
        "name: x\npp_size:\nsource: ~\n" + REQUESTS,
    ],
)
def test_reads(tmp_path: Path, text: str) -> None:
    (scenario,) = read_scenario_file(write(tmp_path, text))
    assert scenario.name == "x"


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"gone\.yaml: cannot be read: No such file"):
        read_scenario_file(tmp_path / "gone.yaml")
    with pytest.raises(ScenarioError, match="found a folder, allowed a YAML file"):
        read_scenario_file(tmp_path)
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_scenario_file("a\0b.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ScenarioError, match="not a regular file"):
        read_scenario_file(tmp_path / "pipe.yaml")


def test_path_below_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    path = write(tmp_path / "configs", "name: x\nnum_speculative_tokens: -1\n" + REQUESTS)
    with pytest.raises(ScenarioError) as caught:
        read_scenario_file(path)
    said = "configs/x.yaml:2: num_speculative_tokens: found -1, allowed 0 to 64"
    assert str(caught.value) == said


def test_error_survives_pickling(tmp_path: Path) -> None:
    error = refused(tmp_path, "name: x\n")
    copy = pickle.loads(pickle.dumps(error))
    assert copy.problems == error.problems and str(copy) == str(error)


def test_scenario_in_python_is_checked_too() -> None:
    scenario = Scenario(name="x", requests=(Request(id="a", prompt_tokens=1, max_tokens=1),))
    assert Scenario.model_validate(scenario.model_dump()) == scenario
    never = Request(id="a", prompt_tokens=1, max_tokens=1, accept=(1,))
    with pytest.raises(ValidationError, match=r"requests\[0\]\.accept\[0\]: found 1"):
        Scenario(name="x", requests=(never,))
    with pytest.raises(ValidationError, match="neither requests nor calls"):
        Scenario(name="x")


def test_imports_no_torch() -> None:
    code = "import sys, ppharness.scenario.catalog, ppharness.scenario.reading as r\n"
    code += "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
