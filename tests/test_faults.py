"""Every kind of fault on purpose: right exit code, right culprit, complete report, no orphan.

The whole matrix (kinds x ranks x steps x launchers) is data.  A covering part of it runs
by default; ``PPHARNESS_ALL_FAULTS=1`` runs all of it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from worlds import TORCHRUN, Run, WarmPython, processes_in, run_fresh, target

NPROC = 3
RANKS = {"first": 0, "middle": 1, "last": 2}
STEPS = {"first": 1, "middle": 5, "last": 11}  # every step from 0 to 11 samples and broadcasts
TIMEOUT = 4.0

# kind -> exit code, kind of the first finding on the rank that was hit
EXPECTED: dict[str, tuple[int, str | None]] = {
    "raise": (1, "exception"),
    "kill": (3, "lost_rank"),
    "segv": (3, "lost_rank"),
    "exit0": (3, "lost_rank"),
    "stall": (3, "hang"),
    "slow": (0, None),
    "skip-broadcast": (1, "divergence"),
    "corrupt-slot": (1, "stray_write"),
    "corrupt-hidden": (1, "divergence"),
    "corrupt-counts": (1, "divergence"),
    "drift": (1, "divergence"),
    "late-abort": (1, "stray_write"),
}
LOSES_WORLD = {"kill", "segv", "exit0", "stall"}

ABORTED = """
name: aborted
max_num_batched_tokens: 2
num_speculative_tokens: 1
requests: [{id: a, prompt_tokens: 1, max_tokens: 8, arrive_at: 2, accept: [0, 1, 1]}]
events: [{step: 6, preempt: a}, {step: 10, abort: a, in_flight: true}]
"""
SCENARIOS = """
name: hit
max_num_reqs: 6
requests:
  - {{id: a, prompt_tokens: 4, max_tokens: 4}}
  - {{id: b, prompt_tokens: 5, max_tokens: 4, arrive_at: 1}}
  - {{id: c, prompt_tokens: 6, max_tokens: 4, arrive_at: 2}}
  - {{id: x, prompt_tokens: 3, max_tokens: 40}}
events:
  - {{step: {abort}, abort: x}}
---
name: after
max_num_reqs: 4
calls:
  - {{idx_mapping: [2, -1, 0], num_sampled: 0}}
"""


@dataclass(frozen=True)
class Case:
    kind: str
    rank: str
    step: str
    launcher: str
    phase: str = ""

    def __str__(self) -> str:
        return "-".join(
            p for p in (self.kind, self.rank, self.step, self.launcher, self.phase) if p
        )


def all_cases() -> list[Case]:
    cases = [Case(*c) for c in product(EXPECTED, RANKS, STEPS, ("run", "torchrun"))]
    phases = ("apply_sampled", "add_request", "preprocess_state", "forward", "relay")
    cases += [
        Case(kind, "middle", "first" if phase == "add_request" else "middle", "run", phase)
        for kind, phase in product(("raise", "kill"), phases)
    ]
    return cases


def chosen_cases() -> list[Case]:
    """Each kind on each rank and in each step at least once; each kind under torchrun."""
    if os.environ.get("PPHARNESS_ALL_FAULTS"):
        return all_cases()
    ranks, steps = list(RANKS), list(STEPS)
    chosen = []
    for number, kind in enumerate(EXPECTED):
        for turn in range(3):
            chosen.append(Case(kind, ranks[turn], steps[(turn + number) % 3], "run"))
        turn = number % 3
        chosen.append(Case(kind, ranks[turn], steps[(turn + 1) % 3], "torchrun"))
    return chosen + [c for c in all_cases() if c.phase]


@pytest.mark.parametrize("case", chosen_cases(), ids=str)
def test_fault(case: Case, tmp_path: Path, warm_python: WarmPython) -> None:
    rank, step = RANKS[case.rank], STEPS[case.step]
    (tmp_path / "hit.yaml").write_text(SCENARIOS.format(abort=step))
    injection = f"{case.kind}@{rank}:{step}" + (f":{case.phase}" if case.phase else "")
    arguments = ["--inject", injection, "--timeout", str(TIMEOUT), "--json", "result.json"]
    started = time.monotonic()
    if case.launcher == "run":
        run = warm_python.run(tmp_path, "run", "--nproc", str(NPROC), *arguments, "hit.yaml")
    else:
        command = (*TORCHRUN, "--nproc-per-node", str(NPROC), "-m", "ppharness")
        run = run_fresh(tmp_path, *arguments, "hit.yaml", command=command)
    took = time.monotonic() - started
    assert not processes_in(tmp_path), "a process stayed behind"
    check(case, run, rank, step, injection)
    if case.launcher == "run" and case.kind == "stall":
        assert took < TIMEOUT + 5 + 20  # the machine may be busy: far below any CI limit


def check(case: Case, run: Run, rank: int, step: int, injection: str) -> None:
    code, kind = EXPECTED[case.kind]
    assert run.report is not None, run.stderr
    assert run.code == (code if case.launcher == "run" or code == 0 else 1), run.stderr
    assert run.report["exit_code"] == code
    assert run.report["injections"] == {injection: 1}
    hit, after = run.scenarios
    for scenario in (hit, after):
        assert [r["label"] for r in scenario["ranks"]] == ["PP0", "PP1", "PP2"]
    lost = case.kind in LOSES_WORLD
    assert after["outcome"] == ("skipped" if lost and case.launcher == "torchrun" else "passed")
    if kind is None:
        assert hit["outcome"] == "passed" and not hit["findings"]
        return
    first = hit["findings"][0]
    kinds = {kind, "mismatch"} if case.kind == "corrupt-slot" else {kind}
    assert first["kind"] in kinds and first["rank"] == rank, hit["findings"]
    assert first["label"] == f"PP{rank}"
    # Counts reach the other ranks, and show there, when they are used: NPROC steps later.
    delay = NPROC if case.kind == "corrupt-counts" and rank < NPROC - 1 else 0
    assert first["step"] == step + delay
    guilty = {f["rank"] for f in hit["findings"] if f["kind"] in ("hang", "lost_rank", "exception")}
    assert guilty <= {rank}, hit["findings"]


def test_an_injection_that_never_strikes_is_an_error(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    (tmp_path / "hit.yaml").write_text(SCENARIOS.format(abort=5))
    run = warm_python.run(
        tmp_path, "run", "--nproc", "2", "--inject", "raise@1:900", "--json", "result.json",
        "hit.yaml",
    )  # fmt: skip
    assert run.code == 2
    assert "never struck" in run.stderr and "raise@1:900" in run.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_the_schedule_tells_which_of_two_ranks_is_odd(
    rank: int, tmp_path: Path, warm_python: WarmPython
) -> None:
    """Two that disagree have no majority."""
    (tmp_path / "hit.yaml").write_text(SCENARIOS.format(abort=5))
    arguments = ("--inject", f"drift@{rank}:5", "--json", "result.json")
    run = warm_python.run(tmp_path, "run", "--nproc", "2", *arguments, "hit.yaml")
    assert run.code == 1
    finding = run.findings("hit")[0]
    assert (finding["kind"], finding["rank"], finding["step"]) == ("divergence", rank, 5)


@pytest.mark.parametrize("kind", ["corrupt-hidden", "corrupt-slot", "corrupt-counts"])
def test_nothing_is_corrupted_where_nobody_looks(
    kind: str, tmp_path: Path, warm_python: WarmPython
) -> None:
    """The only row of step 10 is aborted in flight: a fault there would go unnoticed."""
    (tmp_path / "aborted.yaml").write_text(ABORTED)
    arguments = ("--inject", f"{kind}@1:10", "--json", "result.json")
    run = warm_python.run(tmp_path, "run", "--nproc", "4", *arguments, "aborted.yaml")
    assert run.code == 2
    assert f"--inject {kind}@1:10: it never struck" in run.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raize@1:2", "did you mean"),
        ("kil@1:2", "'kill'"),
        ("kill@7:2", "outside this world"),
        ("kill@1:2:realy", "'relay'"),
        ("drift@1:2:relay", "happens in forward only"),
        ("raise@1:2:at_use", "raise cannot happen in at_use; allowed: apply_sampled, free,"),
        ("kill@1:2:drain", "kill cannot happen in drain; allowed: apply_sampled, free,"),
        ("kill", "KIND@RANK:STEP"),
    ],
)
def test_bad_injection(text: str, said: str, tmp_path: Path, warm_python: WarmPython) -> None:
    run = warm_python.run(tmp_path, "run", "--nproc", "2", "--inject", text)
    assert run.code == 2
    assert said in run.stderr and "Traceback" not in run.stderr


def test_without_ledger_a_skipped_broadcast_is_a_hang(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    """The raw behaviour: the others wait until the deadline, and the right rank is named.

    In the last step, since gloo would take a later broadcast for the one left out.
    """
    (tmp_path / "hit.yaml").write_text(SCENARIOS.format(abort=40))
    run = warm_python.run(
        tmp_path, "run", "--nproc", "3", "--no-ledger", "--inject", "skip-broadcast@2:11",
        "--timeout", str(TIMEOUT), "--json", "result.json", "hit.yaml",
    )  # fmt: skip
    assert run.code == 3
    first = run.scenarios[0]["findings"][0]
    assert (first["kind"], first["label"]) == ("hang", "PP2"), first


def test_restart_under_torchrun_runs_the_rest(tmp_path: Path) -> None:
    (tmp_path / "hit.yaml").write_text(SCENARIOS.format(abort=5))
    command = (*TORCHRUN, "--nproc-per-node", "3", "--max-restarts", "1", "-m", "ppharness")
    run = run_fresh(
        tmp_path, "--inject", "kill@1:5", "--json", "result.json", "hit.yaml", command=command
    )
    assert run.outcomes() == {"hit": "hung", "after": "passed"}
    assert run.findings("hit")[0]["label"] == "PP1"


def test_a_thread_that_raises_after_the_last_step(tmp_path: Path, warm_python: WarmPython) -> None:
    (tmp_path / "short.yaml").write_text(
        "name: short\nrequests: [{id: a, prompt_tokens: 3, max_tokens: 1}]\n"
    )
    run = warm_python.run(
        tmp_path, "run", "--nproc", "2", "--target", target("unusual.py:ThreadDies"),
        "--json", "result.json", "short.yaml", "calls-sparse-slots",
    )  # fmt: skip
    assert run.code == 1
    assert "the copy did not end well" in run.stderr
    finding = run.findings("short")[0]
    assert (finding["kind"], finding["label"]) == ("exception", "PP1")
    assert finding["message"].endswith("the copy did not end well (in thread copier)")
    assert finding["message"].count("in thread") == 1
