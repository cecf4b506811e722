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
    """Wraps the buffer of one state module.

    Raises:
        TypeError: it is not what the contract has, ``[max_num_reqs]`` int32.
    """

    buffer: torch.Tensor  # [max_num_reqs] int32, wherever the target keeps it now

    def __init__(self, state: MambaState, *, max_num_reqs: int, poison: bool = True):
        self._state: Any = state
        self._max_num_reqs = max_num_reqs
        self.look()
        self._last = self.buffer.clone()  # what each slot held when its last owner went
        # What the target itself had in slots that are poisoned now
        self._saved = self.buffer.clone()
        self._backing = self._move()
        if poison:
            self.buffer.fill_(POISON)

    def look(self) -> None:
        """After a call into the target, which may keep its counts in another tensor now."""
        buffer = self._state.num_accepted_tokens
        if not isinstance(buffer, torch.Tensor):
            found = type(buffer).__name__
        elif buffer.dtype != torch.int32 or tuple(buffer.shape) != (self._max_num_reqs,):
            found = f"{str(buffer.dtype).removeprefix('torch.')} {list(buffer.shape)}"
        else:
            self.buffer = buffer
            return
        raise TypeError(
            f"num_accepted_tokens is {found}, allowed: a tensor, int32 [{self._max_num_reqs}]"
        )

    def _move(self) -> torch.Tensor | None:
        """The allocation that the buffer is in from here on, None where it stays.

        The tensor itself is kept, since the target may have handed it on.  What others
        look into as well (a larger tensor, a view, a NumPy array) is left where it is.
        """
        own = self.buffer
        if not own.is_inference() and not _held_alone(own):
            return None
        size = self._max_num_reqs + 2 * NUM_CANARIES
        backing = torch.full((size,), CANARY, dtype=torch.int32, device=own.device)
        inner = backing[NUM_CANARIES:-NUM_CANARIES]
        inner.copy_(own)
        if own.is_inference():  # which cannot be written to from here
            try:
                self._state.num_accepted_tokens = inner
            except AttributeError:
                return None
            self.buffer = inner
        else:
            with torch.no_grad():
                own.set_(backing.untyped_storage(), NUM_CANARIES, own.shape, (1,))
        return backing

    def snapshot(self) -> torch.Tensor:
        """``[max_num_reqs + 2 * NUM_CANARIES]``: the buffer between its canaries."""
        buffer = self.buffer
        if self._backing is not None and buffer.data_ptr() == self._inner_ptr():
            return self._backing
        canary = torch.full((NUM_CANARIES,), CANARY, dtype=torch.int32, device=buffer.device)
        return torch.cat([canary, buffer, canary])

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
        assert self._backing is not None
        return self._backing.data_ptr() + NUM_CANARIES * self._backing.element_size()


def _held_alone(tensor: torch.Tensor) -> bool:
    """Whether nothing else looks into this tensor's memory, as far as torch knows."""
    storage = tensor.untyped_storage()
    whole = storage.nbytes() == tensor.numel() * tensor.element_size()
    shared_with_numpy = not storage.resizable()
    return whole and not shared_with_numpy and _num_holders(tensor) == _num_holders(torch.empty(1))


def _num_holders(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
