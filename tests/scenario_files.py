"""Scenario files for the tests: written, and what is said where one is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ppharness.scenario import ScenarioError, read_scenario_file

REQUESTS = "requests:\n  - {id: a, prompt_tokens: 5, max_tokens: 3}\n"
FULL = """\
name: preempted-then-resumed         # lower case, digits, dashes; unique
description: What it shows, in a sentence.
source: https://example.org/report
pp_size: 4
max_num_reqs: 8
max_num_batched_tokens: 64
max_model_len: 131072
num_speculative_tokens: 3
schedule: async
mamba_cache_mode: none
mamba_block_size: 16
idx_mapping_dtype: int32
requests:
  - {id: a, prompt_tokens: 50, max_tokens: 8, arrive_at: 0, accept: [2, 0, 3]}
  - {id: b, prompt_tokens: 7, max_tokens: 10, arrive_at: 1}
  - {id: c, prompt_tokens: 1, max_tokens: 1}
events:
  - {step: 5, abort: a}
  - {step: 7, abort: b, in_flight: true}
  - {step: 6, preempt: c}
"""


def write(folder: Path, text: str | bytes, name: str = "x.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(folder: Path, text: str | bytes) -> ScenarioError:
    with pytest.raises(ScenarioError) as caught:
        read_scenario_file(write(folder, text))
    for problem in caught.value.problems:
        assert "\n" not in str(problem)
        assert str(problem).isprintable()
    return caught.value


def lines(error: ScenarioError, folder: Path) -> list[str]:
    return [str(problem).removeprefix(f"{folder}{os.sep}") for problem in error.problems]
