"""The main job and its siblings as a user starts them: options, results, exit codes."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worlds import JSON, TORCHRUN, VERIFY, Run, run_fresh, run_two_nodes, target

TWO_CHUNKS = """
name: two-chunks
max_num_reqs: 4
max_num_batched_tokens: 8
num_speculative_tokens: 2
requests:
  - {id: a, prompt_tokens: 12, max_tokens: 6, accept: [1, 0, 2]}
  - {id: b, prompt_tokens: 3, max_tokens: 4, arrive_at: 1}
"""
FILL = """
name: fill
max_num_reqs: 4
initial: 9
calls: [{idx_mapping: [2, -1, 0], num_sampled: 0}]
"""
FOR_THREE = """
name: for-three
pp_size: 3
requests: [{id: a, prompt_tokens: 5, max_tokens: 3}]
"""
WRONG = target("wrong_state.py:CountsDrafts")  # fails in `verify`, passes without drafts


def write(folder: Path, *scenarios: str) -> list[str]:
    """Files of these scenarios, each named as its scenario is."""
    names = [f"{text.split()[1]}.yaml" for text in scenarios]
    for name, text in zip(names, scenarios, strict=True):
        (folder / name).write_text(text)
    return names


# ---- the result ---------------------------------------------------------------------

TOP = {
    "schema": str, "version": str, "outcome": str, "exit_code": int, "target": dict,
    "world": dict, "environment": dict, "scenarios": list,
}  # fmt: skip
WORLD = {
    "pp_size": int, "tp_size": int, "device": str, "backend": str, "ranks_per_gpu": int,
    "triton": str,
}  # fmt: skip
SCENARIO = {
    "name": str, "file": str, "outcome": str, "reason": (str, type(None)), "seed": int,
    "steps": int, "checks": int, "seconds": (int, float), "ranks": list, "findings": list,
}  # fmt: skip


def has(data: dict[str, Any], keys: dict[str, Any]) -> None:
    for key, kind in keys.items():
        assert isinstance(data[key], kind), (key, data[key])


def check_result(report: dict[str, Any], labels: list[str], tp_size: int = 1) -> None:
    """A result with every key of the contract, for ranks of these labels."""
    has(report, TOP)
    assert report["schema"] == "ppharness.result/1"
    has(report["target"], {"name": str, "version": (str, type(None))})
    has(report["world"], WORLD)
    world = {k: v for k, v in report["world"].items() if k in WORLD}
    assert world == {
        "pp_size": len(labels) // tp_size, "tp_size": tp_size, "device": "cpu",
        "backend": "gloo", "ranks_per_gpu": 0, "triton": "interpreter",
    }  # fmt: skip
    has(report["environment"], {"python": str, "torch": str, "triton": str})
    assert report["environment"]["gpu"] is None
    for scenario in report["scenarios"]:
        has(scenario, SCENARIO)
        assert [r["rank"] for r in scenario["ranks"]] == list(range(len(labels)))
        assert [r["label"] for r in scenario["ranks"]] == labels
        assert all(isinstance(r["outcome"], str) for r in scenario["ranks"])


def test_main_job(tmp_path: Path) -> None:
    names = write(tmp_path, TWO_CHUNKS, FILL, FOR_THREE)
    run = run_fresh(
        tmp_path, "--nproc-per-node", "4", "-m", "ppharness", "--device", "cpu", "--json", JSON,
        "--junit", "result.xml", "--markdown", "result.md", "--html", "result.html",
        "--trace", "trace.json", "--seed", "7", "founding-case", *names, command=TORCHRUN,
    )  # fmt: skip
    assert run.code == 0, run.stdout + run.stderr
    assert run.report is not None
    check_result(run.report, ["PP0", "PP1", "PP2", "PP3"])
    assert (run.report["outcome"], run.report["exit_code"]) == ("passed", 0)
    assert run.report["target"]["name"] == "builtin"
    assert run.outcomes() == {
        "founding-case": "passed", "two-chunks": "passed", "fill": "passed",
        "for-three": "skipped",
    }  # fmt: skip
    founding, chunks, fill, pinned = run.scenarios
    assert founding["file"].endswith("founding-case.yaml")
    assert (chunks["file"], fill["file"]) == ("two-chunks.yaml", "fill.yaml")
    for scenario in (founding, chunks, fill):
        assert scenario["seed"] == 7 and scenario["reason"] is None
        assert scenario["steps"] > 0 and scenario["checks"] > 0 and scenario["seconds"] >= 0
    assert all(r["num_accepted_tokens"] == [1, 9, 1, 9] for r in fill["ranks"])
    for row in chunks["ranks"]:
        counts = row["num_accepted_tokens"]
        assert len(counts) == 4 and all(1 <= count <= 3 for count in counts)
    assert pinned["reason"] and "3" in pinned["reason"] and "4" in pinned["reason"]
    assert (pinned["steps"], pinned["checks"]) == (0, 0)
    # One rank prints, once; progress is on stderr.
    assert run.stdout.count("4 scenarios") == 1
    assert "[1/4]" in run.stderr and "[1/4]" not in run.stdout
    assert "founding-case" in (tmp_path / "result.md").read_text()
    assert "<html" in (tmp_path / "result.html").read_text()
    json.loads((tmp_path / "trace.json").read_text())
    cases = list(ElementTree.parse(tmp_path / "result.xml").iter("testcase"))
    assert len(cases) == 4


def test_two_nodes(tmp_path: Path) -> None:
    """Two agents of 2 ranks each; one of the four ranks reports."""
    (scenario,) = write(tmp_path, TWO_CHUNKS)
    same = ["--json", JSON, "founding-case", scenario]
    one, two = run_two_nodes(tmp_path, same, same)
    assert (one.code, two.code) == (0, 0), one.stderr + two.stderr
    report = json.loads((tmp_path / JSON).read_text())
    check_result(report, ["PP0", "PP1", "PP2", "PP3"])
    assert {s["outcome"] for s in report["scenarios"]} == {"passed"}
    assert (one.stdout + two.stdout).count("2 scenarios") == 1


def test_a_bad_file_under_torchrun(tmp_path: Path) -> None:
    """Every rank sees the fault, one says it; torchrun makes 1 of the exit code."""
    (tmp_path / "bad.yaml").write_text("name: bad\nrequestz: []\n")
    run = run_fresh(
        tmp_path, "--nproc-per-node", "2", "-m", "ppharness", "--json", JSON, "bad.yaml",
        command=TORCHRUN,
    )  # fmt: skip
    assert run.code == 1 and run.report is None
    assert run.stdout == ""
    assert run.stderr.count("unknown key 'requestz'") == 1
    assert "exitcode  : 2" in run.stderr


def test_a_bad_option_under_torchrun(tmp_path: Path) -> None:
    run = run_fresh(
        tmp_path, "--nproc-per-node", "4", "-m", "ppharness", "--timeout", "x", command=TORCHRUN
    )
    assert (run.code, run.stdout) == (1, "")
    said = "ppharness: error: argument --timeout: found 'x', allowed: seconds above 0"
    assert run.stderr.count(said) == run.stderr.count("--timeout") == 1
    assert "exitcode  : 2" in run.stderr


def test_tensor_parallel(run_world: Callable[..., Run]) -> None:
    run = run_world(TWO_CHUNKS, FILL, nproc=4, args=("--tp", "2"))
    assert run.code == 0, run.stdout
    assert run.report is not None
    check_result(run.report, ["PP0_TP0", "PP0_TP1", "PP1_TP0", "PP1_TP1"], tp_size=2)
    assert set(run.outcomes().values()) == {"passed"}


def test_tensor_parallel_failure(run_world: Callable[..., Run]) -> None:
    """Both columns of the pipeline run the same and fail alike; ranks are named in full."""
    wrong = target("wrong_state.py:CountsDraftsOnPP1")
    run = run_world(VERIFY, nproc=4, args=("--tp", "2"), target=wrong)
    assert run.code == 1
    # On 2 stages a verifies in steps 2 and 4; step 2 yielded 3.
    first = [f for f in run.findings() if f["kind"] == "mismatch"][:2]
    assert [f["label"] for f in first] == ["PP1_TP0", "PP1_TP1"]
    for finding in first:
        assert (finding["step"], finding["phase"], finding["slot"]) == (4, "at_use", 3)
        assert (finding["expected"], finding["actual"]) == (3, 2)
    assert "PP1_TP1" in run.stdout


def test_one_rank(run_world: Callable[..., Run]) -> None:
    run = run_world(TWO_CHUNKS, FILL, FOR_THREE, nproc=1)
    assert run.code == 0, run.stdout
    assert run.report is not None
    check_result(run.report, ["PP0"])
    assert run.outcomes() == {"two-chunks": "passed", "fill": "passed", "for-three": "skipped"}


def test_pinned_to_another_size(run_world: Callable[..., Run]) -> None:
    run = run_world(FOR_THREE, nproc=2)
    assert (run.code, run.outcomes()) == (0, {"for-three": "skipped"})
    reason = run.scenarios[0]["reason"]
    assert "3" in reason and "2" in reason and reason in " ".join(run.stdout.split())
    assert run.scenarios[0]["findings"] == []
    assert [r["outcome"] for r in run.scenarios[0]["ranks"]] == ["skipped"] * 2


def test_pinned_to_this_size(run_world: Callable[..., Run]) -> None:
    run = run_world(FOR_THREE, nproc=3)
    assert (run.code, run.outcomes()) == (0, {"for-three": "passed"})


# ---- options ------------------------------------------------------------------------


def test_stops_after_the_first_failure(run_world: Callable[..., Run]) -> None:
    run = run_world(FOR_THREE, VERIFY, TWO_CHUNKS, FILL, target=WRONG, nproc=2, args=("-x",))
    assert run.code == 1
    assert run.outcomes() == {
        "for-three": "skipped", "verify": "failed", "two-chunks": "skipped", "fill": "skipped",
    }  # fmt: skip
    assert run.scenarios[0]["reason"] and "stages" in run.scenarios[0]["reason"]
    assert all("not run" in s["reason"] for s in run.scenarios[2:])


def test_goes_on_after_a_failure(run_world: Callable[..., Run]) -> None:
    run = run_world(VERIFY, FILL, target=WRONG, nproc=2)
    assert (run.code, run.outcomes()["verify"]) == (1, "failed")
    assert run.outcomes()["fill"] == "passed"


def test_selects_by_name(run_world: Callable[..., Run]) -> None:
    run = run_world(
        TWO_CHUNKS, FILL, VERIFY, nproc=2, args=("-k", "(FILL or chunks) and not two")
    )  # fmt: skip
    assert (run.code, run.outcomes()) == (0, {"fill": "passed"})


def test_quiet(run_world: Callable[..., Run]) -> None:
    run = run_world(TWO_CHUNKS, FILL, nproc=2, args=("-q",))
    assert run.code == 0
    assert len(run.stdout.strip().splitlines()) == 1 and "2 passed" in run.stdout
    assert run.stderr == ""


def test_quiet_shows_failures(run_world: Callable[..., Run]) -> None:
    run = run_world(VERIFY, FILL, nproc=2, args=("-q",), target=WRONG)
    assert run.code == 1
    assert "verify" in run.stdout and "PP1" in run.stdout and "1 failed" in run.stdout
    assert run.stderr == ""


def test_junit(run_world: Callable[..., Run], tmp_path: Path) -> None:
    run = run_world(
        VERIFY, FILL, FOR_THREE, nproc=2, target=WRONG, args=("--junit", "result.xml")
    )  # fmt: skip
    assert run.code == 1
    by_name = {
        case.attrib["name"]: [child.tag for child in case]
        for case in ElementTree.parse(tmp_path / "result.xml").iter("testcase")
    }
    assert len(by_name) == 3
    failed = next(tags for name, tags in by_name.items() if "verify" in name)
    passed = next(tags for name, tags in by_name.items() if "fill" in name)
    skipped = next(tags for name, tags in by_name.items() if "for-three" in name)
    assert "failure" in failed
    assert "failure" not in passed and "skipped" not in passed
    assert "skipped" in skipped


def test_trace(run_world: Callable[..., Run], tmp_path: Path) -> None:
    run = run_world(TWO_CHUNKS, nproc=2, args=("--trace", "trace.json"))
    assert run.code == 0
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    assert any(event.get("ph") == "X" for event in events)


def test_the_command_to_run_it_again(run_world: Callable[..., Run], tmp_path: Path) -> None:
    """What a failure says to type does run that scenario, and fails again."""
    run = run_world(VERIFY, target=WRONG, nproc=2, args=("--seed", "3"))
    (line,) = [line for line in run.stdout.splitlines() if "reproduce:" in line]
    words = line.split("reproduce:")[1].split()
    assert words[:2] == ["ppharness", "run"]
    again = run_fresh(tmp_path, *words[1:])
    assert again.code == 1, again.stderr
    assert "mismatch" in again.stdout


@pytest.mark.parametrize("arguments", [["list"], ["validate"], ["--help"], ["--version"]])
def test_commands_without_ranks(tmp_path: Path, arguments: list[str]) -> None:
    """They start no process, do not import torch and are fast."""
    if arguments == ["validate"]:
        arguments = ["validate", *write(tmp_path, TWO_CHUNKS, FILL)]
    check = (
        "import sys, runpy\n"
        "sys.addaudithook(lambda event, args: event in ('os.fork', 'subprocess.Popen',"
        " 'os.posix_spawn') and sys.exit(f'started a process: {event} {args}'))\n"
        "try:\n"
        "    runpy.run_module('ppharness', run_name='__main__')\n"
        "finally:\n"
        "    heavy = {'torch', 'triton', 'numpy'} & set(sys.modules)\n"
        "    sys.stderr.write(f'imported: {sorted(heavy)}')\n"
    )
    run = run_fresh(tmp_path, *arguments, command=(sys.executable, "-c", check))
    assert run.code == 0, run.stderr
    assert run.stderr == "imported: []"
    assert run.stdout


def test_list(tmp_path: Path) -> None:
    run = run_fresh(tmp_path, "list")
    shown = [line.split()[0] for line in run.stdout.splitlines() if line.startswith("  ")]
    configs = Path(__file__).resolve().parents[1] / "configs"
    names = {path.read_text().split("name: ")[1].split()[0] for path in configs.glob("*.yaml")}
    assert names <= set(shown)
    assert {"builtin", "index-fill", "index-fill-int64", "vllm"} <= set(shown)


IN_A_JOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list"], "founding-case"),
        (["validate", "fill.yaml"], "1 scenarios are valid"),
        (["vllm", "list"], ""),
        (["doctor"], "torch"),
        (["matrix", "--nproc", "2", "--target", "builtin", "fill.yaml"], "fill"),
        (["run", "--nproc", "2", "fill.yaml"], "1 scenario"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_inside_a_job(tmp_path: Path, arguments: list[str], said: str) -> None:
    """A job's environment makes no rank of a command that is named."""
    write(tmp_path, FILL)
    run = run_fresh(tmp_path, *arguments, env=IN_A_JOB)
    assert run.code == 0, run.stderr
    assert said in run.stdout


def test_files_are_checked_inside_a_job(tmp_path: Path) -> None:
    """Before anything runs, whatever rank the job's environment gives."""
    run = run_fresh(tmp_path, "run", "--json", "no-folder/x.json", "-k", "one-chunk", env=IN_A_JOB)
    assert (run.code, run.stdout) == (2, "")
    assert "no-folder" in run.stderr and "[1/" not in run.stderr


def test_a_folder_called_like_a_command(tmp_path: Path) -> None:
    (tmp_path / "list").mkdir()
    write(tmp_path / "list", FILL)
    for scenario in ("./list", "list/"):
        run = run_fresh(
            tmp_path, "--nproc-per-node", "1", "-m", "ppharness", scenario, command=TORCHRUN
        )
        assert run.code == 0 and "1 scenario" in run.stdout, run.stderr
