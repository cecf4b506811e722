"""The harness's hold on a target's ``num_accepted_tokens``: canaries and poison.

The buffer is moved into a larger allocation with canary values on both sides.  A
slot that no request owns is poisoned.  A target sees its own value again when the
slot is taken, so it may reset a count when a request comes or when one goes.
"""

from __future__ import annotations

from typing import Any

import torch

from ..targets.interface import MambaState
from .checks import CANARY, NUM_CANARIES, POISON


class BufferGuard:
    """Wraps the buffer of one state module."""

    def __init__(self, state: MambaState, *, max_num_reqs: int, poison: bool = True):
        self._state: Any = state
        self._max_num_reqs = max_num_reqs
        own = state.num_accepted_tokens
        if tuple(own.shape) != (max_num_reqs,):
            raise ValueError(
                f"num_accepted_tokens has shape {list(own.shape)}, allowed: [{max_num_reqs}]"
            )
        size = max_num_reqs + 2 * NUM_CANARIES
        self._backing = torch.full((size,), CANARY, dtype=torch.int32, device=own.device)
        inner = self._backing[NUM_CANARIES:-NUM_CANARIES]
        inner.copy_(own)
        self._last = own.clone()  # what each slot held when its last owner went
        self._saved = own.clone()  # what the target itself had in slots that are poisoned now
        try:
            self._state.num_accepted_tokens = inner
        except AttributeError:  # a read-only property: no canaries, all else works
            self._backing = None  # type: ignore[assignment]
        if poison:
            self._state.num_accepted_tokens.fill_(POISON)

    @property
    def buffer(self) -> torch.Tensor:
        """``[max_num_reqs]``, wherever the target keeps it now."""
        buffer: torch.Tensor = self._state.num_accepted_tokens
        return buffer

    def snapshot(self) -> torch.Tensor:
        """``[max_num_reqs + 2 * NUM_CANARIES]``: the buffer between its canaries."""
        buffer = self.buffer
        if self._backing is not None and buffer.data_ptr() == self._inner_ptr():
            return self._backing
        canary = torch.full((NUM_CANARIES,), CANARY, dtype=torch.int32, device=buffer.device)
        return torch.cat([canary, buffer.to(torch.int32), canary])

    def before_add(self, slot: int) -> None:
        """The slot gets an owner: the target finds its own value there."""
        self.buffer[slot].copy_(self._saved[slot])

    def before_remove(self, slot: int) -> None:
        """The owner goes: what it leaves is made unmistakable, should it leak."""
        self._last[slot].copy_(self.buffer[slot])
        self.buffer[slot].fill_(POISON + 1 + slot)

    def after_remove(self, slot: int) -> None:
        """Nobody owns the slot from here on."""
        self._saved[slot].copy_(self.buffer[slot])
        self.buffer[slot].fill_(POISON)

    def final(self) -> list[int]:
        """``[max_num_reqs]`` for the report: each slot as its last owner left it."""
        buffer = self.buffer
        values: list[int] = torch.where(buffer == POISON, self._last, buffer).cpu().tolist()
        return values

    def _inner_ptr(self) -> int:
        return self._backing.data_ptr() + NUM_CANARIES * self._backing.element_size()
