"""Bad input: exit code 2, one message a fault, nothing run."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import JSON, VERIFY, Run, WarmPython, run_fresh, target

HEAD = "name: bad\n"
REQUESTS = "requests:\n  - {id: a, prompt_tokens: 5, max_tokens: 3}\n"
BAD_FILES = {
    "unknown-key": (HEAD + "colour: red\n" + REQUESTS, ["bad.yaml:2", "colour", "max_num_reqs"]),
    "misspelt-key": (
        HEAD + "max_num_req: 4\n" + REQUESTS, ["bad.yaml:2", "max_num_req", "'max_num_reqs'"],
    ),
    "misspelt-inner-key": (
        HEAD + "requests:\n  - {id: a, promt_tokens: 5, max_tokens: 3}\n",
        ["bad.yaml:3", "promt_tokens", "'prompt_tokens'"],
    ),
    "wrong-type": (
        HEAD + "max_num_reqs: many\n" + REQUESTS,
        ["bad.yaml:2", "max_num_reqs", "found many", "an integer"],
    ),
    "negative-k": (
        HEAD + "num_speculative_tokens: -1\n" + REQUESTS,
        ["bad.yaml:2", "num_speculative_tokens", "-1", "0 to"],
    ),
    "too-long": (
        HEAD + "max_model_len: 7\n" + REQUESTS,
        ["bad.yaml:4", "requests[0].prompt_tokens", "8", "max_model_len 7", "never fit"],
    ),
    "event-for-nobody": (
        HEAD + REQUESTS + "events: [{step: 2, abort: b}]\n",
        ["bad.yaml:4", "events[0].abort", "'b'", "allowed", "a"],
    ),
    "two-of-one-id": (
        HEAD + REQUESTS + "  - {id: a, prompt_tokens: 5, max_tokens: 3}\n",
        ["bad.yaml:4", "requests[1].id", "'a'", "requests[0]"],
    ),
    "accepts-too-many": (
        HEAD + "requests: [{id: a, prompt_tokens: 5, max_tokens: 3, accept: [1]}]\n",
        ["bad.yaml:2", "requests[0].accept[0]", "1", "num_speculative_tokens"],
    ),
    "empty": ("", ["bad.yaml:1", "no scenario"]),
    "not-yaml": (HEAD + "requests: [{id: a\n", ["bad.yaml:", "not YAML"]),
    "schedule": (
        HEAD + "schedule: eventually\n" + REQUESTS,
        ["bad.yaml:2", "schedule", "found eventually", "async", "sync"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", [["run", "--json", JSON], ["validate"]], ids=lambda c: c[0])
@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file(tmp_path: Path, name: str, command: list[str]) -> None:
    text, said = BAD_FILES[name]
    (tmp_path / "bad.yaml").write_text(text)
    check_refused(run_fresh(tmp_path, *command, "bad.yaml"), said)


def test_every_fault_of_a_file_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(
        "name: Bad\nmax_num_reqs: 0\nrequests:\n  - {id: a, prompt_tokens: 5}\n"
    )
    run = run_fresh(tmp_path, "validate", "bad.yaml")
    assert (run.code, run.stdout) == (2, "")
    lines = run.stderr.splitlines()
    assert len(lines) == 3
    for line, part in zip(lines, ("bad.yaml:1: name", "bad.yaml:2: max_num_reqs", "max_tokens"),
                          strict=True):  # fmt: skip
        assert part in line


OK = ["ok.yaml"]
BAD_ARGUMENTS: dict[str, tuple[list[str], list[str]]] = {
    "folder-without-scenarios": (["empty-folder"], ["empty-folder", "without scenarios", "yaml"]),
    "no-such-file": (["nothing.yaml"], ["nothing.yaml"]),
    "no-such-scenario": (["founding-cas"], ["founding-cas", "'founding-case'"]),
    "nproc": (["--nproc", "0", *OK], ["--nproc", "'0'", "1 to"]),
    "tp": (["--tp", "3", "--nproc", "4", *OK], ["--tp 3", "4 ranks", "multiple of 3"]),
    "json-folder": (["--json", "no-folder/x.json", *OK], ["--json", "no-folder"]),
    "json-is-folder": (["--json", "empty-folder", *OK], ["--json", "empty-folder", "folder"]),
    "json-below-file": (["--json", "ok.yaml/x.json", *OK], ["--json", "ok.yaml/x.json"]),
    "no-match": (["-k", "nothing", *OK], ["-k", "nothing", "no scenario"]),
    "expression": (["-k", "(a", *OK], ["-k", "(a", "')'"]),
    "timeout": (["--timeout", "0", *OK], ["--timeout", "'0'", "seconds"]),
    "device": (["--device", "tpu", *OK], ["--device", "tpu", "cpu"]),
    "option": (["--colour", *OK], ["--colour"]),
    "cuda": (["--device", "cuda", *OK], ["--device cuda", "no usable GPU"]),
    "no-such-target": (["--target", "buildin", *OK], ["buildin", "'builtin'"]),
    "no-target-file": (["--target", "nothing.py:X", *OK], ["--target", "nothing.py"]),
    "no-module": (["--target", "no.such:X", *OK], ["--target", "no.such", "ModuleNotFoundError"]),
    "no-class": (["--target", "own.py:Goodd", *OK], ["--target", "own.py", "'Goodd'", "'Good'"]),
    "no-target": (["--target", "json:JSONDecoder", *OK], ["JSONDecoder", "make_mamba_state"]),
    "target-raises": (["--target", "bad.py:X", *OK], ["bad.py", "ZeroDivisionError", "bad.py:2"]),
    "not-python": (["--target", "syntax.py:X", *OK], ["syntax.py", "SyntaxError"]),
    "constructor": (
        ["--target", target("raising.py:TargetConstructor"), *OK],
        ["raising.py:TargetConstructor", "raised on purpose"],
    ),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments(tmp_path: Path, warm_python: WarmPython, name: str) -> None:
    arguments, said = BAD_ARGUMENTS[name]
    (tmp_path / "ok.yaml").write_text(VERIFY)
    (tmp_path / "empty-folder").mkdir()
    (tmp_path / "bad.py").write_text("x = 0\ny = 1 / x\n")
    (tmp_path / "syntax.py").write_text("class X(:\n")
    (tmp_path / "own.py").write_text(
        "from ppharness.targets import BuiltinTarget\nclass Good(BuiltinTarget): ...\n"
    )
    check_refused(warm_python.run(tmp_path, "run", *arguments), said)


def check_refused(run: Run, said: list[str]) -> None:
    """One message with all of `said` in it, and nothing else."""
    assert (run.code, run.stdout) == (2, ""), run.stderr
    assert run.report is None
    assert "Traceback" not in run.stderr
    errors = [line for line in run.stderr.splitlines() if "error: " in line]
    assert len(errors) == 1, run.stderr
    for part in said:
        assert part in errors[0]
    rest = [line for line in run.stderr.splitlines() if line not in errors]
    assert not rest or rest[0].startswith("usage: ")
