"""Calls into the target on one rank: where it raises, the rank goes on without it."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..findings import ExceptionInfo, Finding, Frame, Phase
from ..world.errors import NotPosted, TransportError
from ..world.world import World
from .checks import CheckList
from .faults import Faults

T = TypeVar("T")
_OURS = str(Path(__file__).resolve().parent)


class TargetCalls:
    """Guards the calls of one scenario.

    After the target raised, its state module is left alone; its relay goes on, so that
    the other ranks are not left waiting, unless it is the relay that raised.
    """

    def __init__(self, world: World, checks: CheckList, faults: Faults):
        self.world, self.checks, self.faults = world, checks, faults
        self.failed = False
        self.relay_failed = False
        self._thread_errors: list[tuple[str, BaseException]] = []
        threading.excepthook = self._on_thread_error

    def state(self, phase: Phase, step: int, function: Callable[..., T], *args: Any) -> T | None:
        """A call into the state module or the slots; none after the target raised."""
        if self.failed:
            return None
        self.world.at(step, phase)
        try:
            self.faults.strike(step, phase)
            return function(*args)
        except Exception as error:
            self.fail(phase, step, error)
            return None

    def relay(self, phase: Phase, step: int, function: Callable[..., T], *args: Any) -> T | None:
        """A call into the relay."""
        if self.relay_failed:
            return None
        self.world.at(step, phase)
        try:
            self.faults.strike(step, phase)
            return function(*args)
        except NotPosted:  # the ledger has both sides and tells
            self.relay_failed = self.failed = True
        except TransportError:
            raise
        except Exception as error:
            self.relay_failed = self.world.ledger.broken = True
            self.fail(phase, step, error)
        return None

    def fail(self, phase: Phase | None, step: int | None, error: BaseException) -> None:
        """The first exception on this rank becomes a finding."""
        if self.failed:
            return
        self.failed = True
        self.checks.findings.append(
            Finding(
                kind="exception",
                rank=self.world.rank,
                label=self.world.label,
                step=step,
                phase=phase,
                message=f"{type(error).__name__}: {error}",
                exception=describe_exception(error),
            )
        )

    def end_of_step(self, step: int) -> None:
        """An exception in a thread of the target counts as one of its calls."""
        while self._thread_errors:
            name, error = self._thread_errors.pop(0)
            self.fail("postprocess_state", step, error)
            self.checks.findings[-1].message += f" (in thread {name})"

    def _on_thread_error(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            name = args.thread.name if args.thread else "?"
            self._thread_errors.append((name, args.exc_value))


def describe_exception(error: BaseException) -> ExceptionInfo:
    """Type, message and frames of the target's part of a traceback, outermost first."""
    frames = [
        Frame(f.filename, f.lineno or 0, f.name)
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith(_OURS)
    ]
    return ExceptionInfo(type(error).__name__, str(error), frames[-30:])
