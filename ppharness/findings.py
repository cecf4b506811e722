"""What a run found: plain records, made on each rank, gathered, then reported.

The field names are those of the JSON result (schema ``ppharness.result/1``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["mismatch", "stray_write", "divergence", "exception", "hang", "lost_rank"]
Phase = Literal[
    "free",
    "apply_sampled",
    "add_request",
    "preprocess_state",
    "at_use",
    "forward",
    "relay",
    "postprocess_state",
    "drain",
]
Outcome = Literal["passed", "failed", "crashed", "hung", "skipped"]
NOT_RUN = "not run: the world was lost"  # how the reason of a scenario begins that did not run
PHASES: tuple[Phase, ...] = (
    "apply_sampled",
    "free",
    "add_request",
    "preprocess_state",
    "at_use",
    "forward",
    "relay",
    "postprocess_state",
    "drain",
)  # in the order of a step


@dataclass
class Frame:
    file: str
    line: int
    function: str


@dataclass
class ExceptionInfo:
    type: str
    message: str
    frames: list[Frame] = field(default_factory=list)  # outermost first


@dataclass
class Finding:
    """One fault, with the place where it showed.

    ``slot`` is a request slot, -1 and below or ``max_num_reqs`` and above for a
    canary just outside the buffer.  ``step`` is None where no step was running.
    """

    kind: Kind
    rank: int
    label: str
    step: int | None
    phase: Phase | None
    message: str
    req_id: str | None = None
    slot: int | None = None
    expected: int | None = None
    actual: int | None = None
    exception: ExceptionInfo | None = None
    stack: str | None = None  # Python stacks of a hung rank
    consequence: bool = False  # follows from another finding; its rank is not to blame


@dataclass
class RankReport:
    """How one rank of one scenario ended."""

    rank: int
    label: str
    outcome: Outcome = "passed"
    num_accepted_tokens: list[int] | None = None  # [max_num_reqs] as the rank left it
    last_position: str | None = None  # where it was last seen: "step 7, relay"
    stack: str | None = None  # where its code was, after a hang or a loss


@dataclass
class ScenarioReport:
    name: str
    file: str | None
    outcome: Outcome = "passed"
    reason: str | None = None  # why it was skipped or did not run
    seed: int = 0
    steps: int = 0
    checks: int = 0
    seconds: float = 0.0
    source: str | None = None  # link to the report that the scenario stands for
    ranks: list[RankReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    rows_per_step: list[str] = field(default_factory=list)  # grid cells: "prefill a, decode b"
    trace: list[TraceEvent] = field(default_factory=list)  # not part of the JSON


@dataclass
class TraceEvent:
    """One phase of one step on one rank, for the Chrome/Perfetto trace."""

    rank: int
    label: str
    step: int
    phase: str
    scenario: str
    start_us: float  # on a clock that all ranks share
    duration_us: float


@dataclass
class RunReport:
    """A whole run; ``to_json`` is the contract's JSON."""

    version: str
    target: dict[str, Any]  # name, version
    world: dict[str, Any]  # pp_size, tp_size, device, backend, ranks_per_gpu, triton
    environment: dict[str, Any]  # python, torch, triton, gpu
    scenarios: list[ScenarioReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    injections: dict[str, int] = field(default_factory=dict)  # how often each fault struck
    interrupted: bool = False
    error: str | None = None
    # A command that runs one scenario again: {scenario} stands for its name,
    # {file} for its file (its name, where it has none).
    reproduce: str | None = None
    trace: list[TraceEvent] = field(default_factory=list)  # not part of the JSON

    @property
    def missed(self) -> list[str]:
        """Injected faults that never struck: what was to be tested was not."""
        return [text for text, count in self.injections.items() if not count]

    @property
    def num_ranks(self) -> int:
        """Ranks of the world, pp_size x tp_size."""
        return int(self.world.get("pp_size") or 1) * int(self.world.get("tp_size") or 1)

    def ranks_of(self, scenario: ScenarioReport) -> list[RankReport]:
        """A row for every rank of the world, in order.

        A rank that sent no row (it died, or the scenario never started) gets one
        that says what is known: lost is ``crashed``, otherwise as the scenario ended.
        """
        rows = {row.rank: row for row in scenario.ranks}
        lost = {f.rank for f in scenario.findings if f.kind == "lost_rank"}
        tp_size = int(self.world.get("tp_size") or 1)
        for rank in range(self.num_ranks):
            if rank not in rows:
                label = rank_label(rank // tp_size, rank % tp_size, tp_size)
                outcome: Outcome = "crashed" if rank in lost else scenario.outcome
                rows[rank] = RankReport(rank=rank, label=label, outcome=outcome)
        return [rows[rank] for rank in sorted(rows)]

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed or crashed, 3 hung or lost a rank, 130 interrupted."""
        outcomes = {s.outcome for s in self.scenarios}
        kinds = {f.kind for s in self.scenarios for f in s.findings}
        if "hung" in outcomes or kinds & {"hang", "lost_rank"}:
            return 3
        if self.interrupted:
            return 130
        if self.error or self.missed:
            return 2
        return 1 if outcomes & {"failed", "crashed"} else 0

    @property
    def outcome(self) -> str:
        if self.exit_code in (2, 130):
            return "error"
        outcomes = {s.outcome for s in self.scenarios}
        return next((o for o in ("hung", "crashed", "failed") if o in outcomes), "passed")

    def go_on(self, later: RunReport) -> None:
        """Takes in what a later world has run; the injections that struck in any have struck."""
        self.scenarios += later.scenarios
        self.trace += later.trace
        self.notes += [note for note in later.notes if note not in self.notes]
        self.interrupted, self.error = later.interrupted, later.error
        if not self.environment:  # the first world was lost before there was a target
            self.target, self.world = later.target, later.world
            self.environment = later.environment
        for text, count in later.injections.items():
            self.injections[text] = max(count, self.injections.get(text, 0))

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "schema": "ppharness.result/1",
            "version": self.version,
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "target": dict(self.target),
            "world": dict(self.world),
            "environment": dict(self.environment),
            "scenarios": [self._scenario_json(s) for s in self.scenarios],
        }
        # Added keys follow those of the contract.
        return body | {
            "notes": list(self.notes),
            "injections": self.injections,
            "interrupted": self.interrupted,
            "error": self.error,
            "reproduce": self.reproduce,
        }

    def _scenario_json(self, scenario: ScenarioReport) -> dict[str, Any]:
        return {
            "name": scenario.name,
            "file": scenario.file,
            "outcome": scenario.outcome,
            "reason": scenario.reason,
            "seed": scenario.seed,
            "steps": scenario.steps,
            "checks": scenario.checks,
            "seconds": scenario.seconds,
            "ranks": [_rank_json(row) for row in self.ranks_of(scenario)],
            "findings": [_finding_json(f) for f in scenario.findings],
            "source": scenario.source,
        }


def _rank_json(row: RankReport) -> dict[str, Any]:
    body = asdict(row)
    if row.stack is None:
        del body["stack"]
    return body


# The keys of a finding in the contract's order; the first group is always there.
_ALWAYS = ("kind", "rank", "label", "step", "phase")
_OF_A_VALUE = ("req_id", "slot", "expected", "actual")


def _finding_json(finding: Finding) -> dict[str, Any]:
    body = asdict(finding)
    body["consequence"] = finding.consequence or None
    keys = [*_ALWAYS, *_OF_A_VALUE, "message", "exception", "stack", "consequence"]
    keep = {*_ALWAYS, "message"}
    if finding.kind in ("mismatch", "stray_write", "divergence"):
        keep |= set(_OF_A_VALUE)
    return {key: body[key] for key in keys if key in keep or body[key] is not None}


def rank_label(pp_rank: int, tp_rank: int, tp_size: int) -> str:
    """``PP2``, or ``PP2_TP1`` where there is tensor parallelism."""
    return f"PP{pp_rank}" if tp_size == 1 else f"PP{pp_rank}_TP{tp_rank}"
