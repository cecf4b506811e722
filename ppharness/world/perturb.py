"""Random short delays on the device, so that a missing wait between streams shows.

The main stream is held back before a phase, so that a side stream that does not wait
for it reads too early; the broadcasts' stream is held back for longer, so that a main
stream that does not wait for it does.  Memory that was given back too early is written
over, as the next allocation would do sooner or later.
"""

from __future__ import annotations

import random

import torch

_CYCLES_PER_MS = 1_800_000
_MAIN_MS = (0.05, 0.4)
_BROADCAST_MS = (2.0, 12.0)  # longer than what the main stream does in several steps
_SIZES = (8, 600, 1100, 2100)  # bytes, a block each: small blocks are multiples of 512


class Perturbation:
    """The delays of one rank; without a seed it does nothing."""

    def __init__(self, seed: int | None, rank: int, device: torch.device):
        on = seed is not None and device.type == "cuda"
        self._random = random.Random(f"{seed}/{rank}") if on else None
        self._device = device

    def on_main(self, phase: str) -> None:
        """Before a phase: a delay at times; before a step's first one, freed memory is spoilt."""
        if self._random is None or phase in ("start-up", "ready", "left"):
            return
        if phase in ("apply_sampled", "build the batch"):
            self._spoil_freed()
        if self._random.random() < 0.3:
            self._delay(_MAIN_MS)

    def on_broadcast(self) -> None:
        """On the stream that posts or awaits a broadcast: now and then a long delay."""
        if self._random is not None and self._random.random() < 0.25:
            self._delay(_BROADCAST_MS)

    def _delay(self, milliseconds: tuple[float, float]) -> None:
        assert self._random is not None
        torch.cuda._sleep(int(_CYCLES_PER_MS * self._random.uniform(*milliseconds)))

    def _spoil_freed(self) -> None:
        """What the allocator would hand out next on this stream is overwritten."""
        held = [
            torch.full((size,), 0x5A, dtype=torch.uint8, device=self._device)
            for size in _SIZES
            for _ in range(6)
        ]
        held.clear()
