"""Carries out injected faults on this rank, each once, and counts them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

import torch

from ..injection import Injection
from ..scenario.model import Scenario

SLOW_WAIT = 0.02  # seconds before every wait of a slowed rank


class InjectedFault(RuntimeError):
    """Raised on purpose by ``--inject raise@...``."""


class Faults:
    """The injections of one rank; `on_fired` hears of each before it strikes."""

    def __init__(self, injections: Sequence[Injection], on_fired: Callable[[Injection], None]):
        self._waiting = list(injections)
        self._on_fired = on_fired
        self._going_on: tuple[str, int] | None = None

    def take(self, kind: str, step: int) -> bool:
        """Whether a fault of this kind is due in this step; it is then used up."""
        for injection in self._waiting:
            if injection.kind == kind and injection.step == step:
                self._use(injection)
                return True
        return False

    def during(self, kind: str, step: int) -> bool:
        """As `take`, but it goes on for the whole step."""
        if self.take(kind, step):
            self._going_on = (kind, step)
        return self._going_on == (kind, step)

    def strike(self, step: int, phase: str) -> None:
        """The faults that hit the process itself, in the phase they are meant for.

        Raises:
            InjectedFault: for `raise`.
        """
        for injection in self._waiting:
            if injection.step != step or injection.phase != phase:
                continue
            if injection.kind in _STRIKES:
                self._use(injection)
                _STRIKES[injection.kind](injection)
                return

    def late_abort(self, scenario: Scenario) -> Scenario | None:
        """The scenario as a rank sees it that hears of an abort one step late, if injected."""
        for injection in self._waiting:
            hit = [e for e in scenario.events if e.abort and e.step == injection.step]
            if injection.kind == "late-abort" and hit:
                self._use(injection)
                events = tuple(
                    e.model_copy(update={"step": e.step + 1}) if e in hit else e
                    for e in scenario.events
                )
                return scenario.model_copy(update={"events": events})
        return None

    def _use(self, injection: Injection) -> None:
        self._waiting.remove(injection)
        self._on_fired(injection)


def spoil(tensor: torch.Tensor, value: int) -> None:
    """Overwrites the first element."""
    tensor.view(-1)[:1].fill_(value)


def _raise(injection: Injection) -> None:
    raise InjectedFault(f"injected: {injection.text}")


def _kill(number: signal.Signals) -> Callable[[Injection], None]:
    return lambda injection: os.kill(os.getpid(), number)


def _stall(injection: Injection) -> None:
    while True:
        time.sleep(3600)


_STRIKES: dict[str, Callable[[Injection], None]] = {
    "raise": _raise,
    "kill": _kill(signal.SIGKILL),
    "segv": _kill(signal.SIGSEGV),
    "exit0": lambda injection: os._exit(0),
    "stall": _stall,
}
