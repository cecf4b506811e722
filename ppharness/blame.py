"""Which findings of a scenario follow from another one, so that no healthy rank is blamed.

What a request's tokens pass through is known: stage after stage in a step, and from the
last stage to the others in a later one.  A divergence behind an earlier fault of the same
request says nothing of the rank that saw it; nor does one behind a call that raised, since
its rank goes on without the target only to keep the others company.  A slot that holds the
wrong count which its rank was told is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from .findings import PHASES, Finding


def mark_consequences(findings: Sequence[Finding], *, tp_size: int) -> None:
    """Sets ``consequence`` on those that follow from another one; each rank's in its order."""
    for number, finding in enumerate(findings):
        finding.consequence = any(
            _leads_to(cause, finding, earlier=place < number, tp_size=tp_size)
            for place, cause in enumerate(findings)
            if cause is not finding
        )


def _leads_to(cause: Finding, finding: Finding, *, earlier: bool, tp_size: int) -> bool:
    if cause.step is None or finding.step is None or cause.rank % tp_size != finding.rank % tp_size:
        return False  # two columns are two pipelines
    same_request = cause.req_id is not None and cause.req_id == finding.req_id
    if finding.kind == "mismatch":
        told = cause.kind == "divergence" and cause.phase == "apply_sampled"
        return (
            told and same_request and cause.rank == finding.rank and cause.step <= finding.step
            and cause.actual is not None and finding.actual == max(cause.actual, 1)
        )  # fmt: skip
    if finding.kind != "divergence" or not (same_request or cause.kind == "exception"):
        return False
    if cause.step != finding.step:
        return cause.step < finding.step
    if cause.rank == finding.rank:
        return (_place(cause), not earlier) < (_place(finding), True)
    return cause.rank < finding.rank and _place(cause) <= _place(finding)


def _place(finding: Finding) -> int:
    """In the order of a step; what no phase is known of comes first."""
    return PHASES.index(finding.phase) if finding.phase in PHASES else -1
