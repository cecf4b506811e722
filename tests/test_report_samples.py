"""Reports built by hand, for the tests of every form of the report."""

from __future__ import annotations

from ppharness.findings import (
    ExceptionInfo,
    Finding,
    Frame,
    RankReport,
    RunReport,
    ScenarioReport,
    TraceEvent,
)

HOSTILE = (
    "</td><script>alert(1)</script> ``` ````\n# @octocat ]]> \x1b[31mred\x00 \u202eabc \ud800 &amp;"
)
CELLS = [f"prefill a, decode b, verify c{i}" for i in range(12)]


def ranks(num_ranks: int = 4, **outcomes: str) -> list[RankReport]:
    """Rows PP0 ..., passed but for those named: ``ranks(PP1="failed")``."""
    rows = []
    for rank in range(num_ranks):
        row = RankReport(rank, f"PP{rank}", num_accepted_tokens=[1, 3, 1, 1])
        row.outcome = outcomes.get(row.label, "passed")  # type: ignore[assignment]
        rows.append(row)
    return rows


def passed(name: str = "single-request", num_ranks: int = 4) -> ScenarioReport:
    return ScenarioReport(
        name, f"configs/{name}.yaml", "passed", None, 0, 12, 480, 0.25, None, ranks(num_ranks)
    )


def mismatch() -> ScenarioReport:
    found = Finding(
        "mismatch", 1, "PP1", 7, "at_use", "PP1 read a stale value", "a", 2, expected=3, actual=1
    )
    return ScenarioReport(
        "stale-slot", "configs/stale-slot.yaml", "failed", None, 0, 12, 480, 0.5,
        "https://example.org/issues/1", ranks(PP1="failed"), [found], CELLS,
    )  # fmt: skip


def exception_on_three() -> ScenarioReport:
    frames = [Frame(f"engine/level_{i}.py", 10 + i, f"level_{i}") for i in range(6)]
    found = [
        Finding(
            "exception", rank, f"PP{rank}", 2, "postprocess_state", f"PP{rank} raised",
            exception=ExceptionInfo("IndexError", "index 8 is out of bounds", frames),
        )
        for rank in range(3)
    ]  # fmt: skip
    rows = ranks(PP0="crashed", PP1="crashed", PP2="crashed")
    return ScenarioReport(
        "scalar-fill", None, "crashed", None, 3, 3, 20, 0.1, None, rows, list(found), CELLS
    )


def hang() -> ScenarioReport:
    rows = ranks(PP2="hung")
    rows[2].last_position = "step 5, relay"
    found = Finding(
        "hang", 2, "PP2", 5, "relay", "PP2 waits for tokens of step 5 from PP3", stack="File x\n  f"
    )
    return ScenarioReport(
        "lost-broadcast", None, "hung", None, 0, 6, 60, 60.0, None, rows, [found], CELLS
    )


def lost_rank() -> ScenarioReport:
    rows = ranks(PP3="crashed")
    rows[3].last_position = "step 4, forward"
    found = Finding("lost_rank", 3, "PP3", None, None, "PP3 died: killed by SIGKILL")
    return ScenarioReport(
        "killed", None, "crashed", None, 0, 4, 40, 1.0, None, rows, [found], CELLS
    )


def skipped() -> ScenarioReport:
    return ScenarioReport("only-pp2", None, "skipped", "needs a world of pp 2, this one has pp 4")


def hostile() -> ScenarioReport:
    """Everything that a target or a file name can say, said with malice."""
    frames = [Frame(HOSTILE, 1, HOSTILE)]
    found = [
        Finding("mismatch", 0, "PP0", 1, "at_use", HOSTILE, HOSTILE, 0, expected=1, actual=2),
        Finding(
            "exception", 1, "PP1", 1, "forward", HOSTILE,
            exception=ExceptionInfo(HOSTILE, HOSTILE, frames), stack=HOSTILE,
        ),
    ]  # fmt: skip
    return ScenarioReport(
        HOSTILE, HOSTILE, "crashed", HOSTILE, 0, 2, 9, 0.1, "javascript:alert(1)",
        ranks(PP0="failed", PP1="crashed"), found, [HOSTILE, HOSTILE],
    )  # fmt: skip


def run_report(*scenarios: ScenarioReport, pp_size: int = 4) -> RunReport:
    return RunReport(
        version="0.1.0",
        target={"name": "vllm", "version": "0.28.0"},
        world={
            "pp_size": pp_size,
            "tp_size": 1,
            "device": "cpu",
            "backend": "gloo",
            "ranks_per_gpu": 0,
            "triton": "interpreter",
        },
        environment={"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "gpu": None},
        scenarios=list(scenarios),
        reproduce=f"ppharness run --nproc {pp_size} --target vllm@0.28.0 {{scenario}}",
        trace=[
            TraceEvent(1, "PP1", 0, "forward", "single-request", 1500.0, 20.5),
            TraceEvent(0, "PP0", 0, "forward", "single-request", 1000.0, 250.0),
        ],
    )


def full_report() -> RunReport:
    """One scenario of every kind."""
    return run_report(
        passed(), mismatch(), exception_on_three(), hang(), lost_rank(), skipped(), hostile()
    )
