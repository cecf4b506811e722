"""Random short delays on the device, so that a missing wait between streams shows.

Work of the main stream is held back before it is posted, or that of the broadcasts'
stream; a reader that does not wait for the other stream then reads too early, and
memory that was given back too early is handed out again while it is still in use.
"""

from __future__ import annotations

import random

import torch

_CYCLES = 2_000_000  # about a millisecond, more than what a step's kernels take
_CHANCE = 0.5


class Perturbation:
    """The delays of one rank; without a seed it does nothing."""

    def __init__(self, seed: int | None, rank: int, device: torch.device):
        on = seed is not None and device.type == "cuda"
        self._random = random.Random(f"{seed}/{rank}") if on else None
        self._device = device
        self._held: list[torch.Tensor] = []

    def delay(self) -> None:
        """Holds back the current stream, at times."""
        if self._random is not None and self._random.random() < _CHANCE:
            torch.cuda._sleep(int(_CYCLES * self._random.uniform(0.1, 1.0)))

    def churn(self, sizes: tuple[int, ...] = (512, 1024, 2048)) -> None:
        """Overwrites what the allocator would hand out next on the current stream.

        Freed memory is handed out last freed, first taken; a tensor that another stream
        still reads, and that was not recorded on it, is spoilt here.
        """
        if self._random is None:
            return
        for size in sizes:
            for _ in range(4):
                block = torch.empty(size, dtype=torch.uint8, device=self._device)
                block.fill_(0x5A)
                self._held.append(block)
        self._held.clear()
