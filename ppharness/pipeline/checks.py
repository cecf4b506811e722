"""Checks: what a rank did, kept as tensors, judged against the oracle.

A check is recorded where it happens, as a copy on the device, and judged later in
plain NumPy: on a CPU at the end of the step, on CUDA once a scenario (or a step).
So nothing is read back while a scenario runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ..findings import Finding, Phase
from ..world.device_fault import keep_for_ever

Judge = Callable[[np.ndarray], None]

CANARY = 0x5AFEC0DE  # around the buffer
POISON = 0x0BADBAD0  # in slots that no request owns
NUM_CANARIES = 16  # on each side
_MAX_PENDING = 8192  # checks kept before they are judged
_MAX_FINDINGS = 50  # a rank and scenario


@dataclass
class _Recorded:
    tensor: torch.Tensor
    judge: Judge


class CheckList:
    """The checks of one rank in one scenario."""

    def __init__(self, rank: int, label: str, findings: list[Finding]):
        self.rank = rank
        self.label = label
        self.findings = findings
        self.num_checks = 0
        self._pending: list[_Recorded] = []

    def record(self, tensor: torch.Tensor, judge: Judge, *, copy: bool = True) -> None:
        """Keeps a copy of `tensor` for `judge`, which gets it as an array.

        Args:
            copy: False for a tensor that nobody writes to any more.
        """
        self._pending.append(_Recorded(tensor.clone() if copy else tensor, judge))
        if len(self._pending) >= _MAX_PENDING:
            self.judge()

    def judge(self) -> None:
        """Reads what was recorded (one copy from the device) and judges it in order."""
        pending, self._pending = self._pending, []
        for recorded, array in zip(pending, _read_back([p.tensor for p in pending]), strict=True):
            recorded.judge(array)

    def discard(self) -> None:
        """Leaves aside what was not judged yet, after a device fault: it must not be freed."""
        keep_for_ever(self._pending)
        self._pending = []

    def add(
        self,
        kind: str,
        step: int | None,
        phase: Phase,
        message: str,
        *,
        req_id: str | None = None,
        slot: int | None = None,
        expected: int | None = None,
        actual: int | None = None,
    ) -> None:
        """Adds a finding of this rank."""
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(
                Finding(
                    kind=kind,  # type: ignore[arg-type]
                    rank=self.rank,
                    label=self.label,
                    step=step,
                    phase=phase,
                    message=message,
                    req_id=req_id,
                    slot=slot,
                    expected=expected,
                    actual=actual,
                )
            )


def _read_back(tensors: list[torch.Tensor]) -> list[np.ndarray]:
    if not tensors or tensors[0].device.type == "cpu":
        return [t.numpy() for t in tensors]
    flat = torch.cat([t.to(torch.int64).flatten() for t in tensors]).cpu().numpy()
    ends = np.cumsum([t.numel() for t in tensors])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]
