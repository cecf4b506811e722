"""Calls into the target on one rank: where it raises, the rank goes on without it."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..findings import ExceptionInfo, Finding, Frame, Phase
from ..world.device_fault import is_device_fault, keep_frames_of
from ..world.errors import NotPosted, TransportError, text_of
from ..world.world import World
from .checks import CheckList
from .faults import Faults

T = TypeVar("T")
_JOIN = 0.5  # seconds that threads of the target have to end with the scenario
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
        self.synchronous = False  # wait for the device after each call
        self.look: Callable[[], None] = lambda: None  # at what a call may have changed
        self._ends: deque[tuple[int, Any]] = deque()  # steps that the device may not have done
        self._last: torch.cuda.Event | None = None
        self._thread_errors: list[tuple[str, BaseException]] = []
        self._threads_before = set(threading.enumerate())
        threading.excepthook = self._on_thread_error

    def state(self, phase: Phase, step: int, function: Callable[..., T], *args: Any) -> T | None:
        """A call into the state module or the slots; none after the target raised."""
        if self.failed:
            return None
        self.world.at(step, phase)
        try:
            self.faults.strike(step, phase)
            result = function(*args)
            self.look()
            if self.synchronous:
                torch.cuda.current_stream().synchronize()
            return result
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

    def fail(
        self, phase: Phase | None, step: int | None, error: BaseException, where: str = ""
    ) -> None:
        """The first exception on this rank becomes a finding."""
        broken = self._broke_device(error)
        if broken:
            self.world.device_lost = self.relay_failed = True
            keep_frames_of(error)
        if self.failed:
            return
        self.failed = True
        message = f"{type(error).__name__}: {text_of(error)}{where}"
        if broken:
            self.world.ledger.broken = True
            message = f"device fault, {self._first_suspect(step)}: {message}"
        self.checks.findings.append(
            Finding(
                kind="exception",
                rank=self.world.rank,
                label=self.world.label,
                step=step,
                phase=phase,
                message=message,
                exception=describe_exception(error),
            )
        )

    def end_of_step(self, step: int) -> None:
        """An exception in a thread of the target counts as one of its calls."""
        if self.world.device.type == "cuda" and not self.world.device_lost:
            self._look_at_device(step)
        self._hear_threads(step)

    def end_of_scenario(self, step: int) -> None:
        """Threads that the target started in it may still be at work, for a short while."""
        deadline = time.monotonic() + _JOIN
        for thread in set(threading.enumerate()) - self._threads_before:
            if not thread.daemon:
                thread.join(max(0.0, deadline - time.monotonic()))
        self._hear_threads(step)

    def _hear_threads(self, step: int) -> None:
        while self._thread_errors:
            name, error = self._thread_errors.pop(0)
            self.fail("postprocess_state", step, error, f" (in thread {name})")

    def judge(self, step: int) -> None:
        """Reads back what was recorded so far; a device fault can show here at last."""
        try:
            self.checks.judge()
        except RuntimeError as error:
            if not is_device_fault(error):
                raise
            self.checks.discard()
            self.fail("drain", step, error)

    def device_done(self, seconds: float) -> bool:
        """Whether the device has done all, or broke, within `seconds`; waits for no other rank."""
        deadline = time.monotonic() + seconds
        try:
            if self._last is None:
                self._last = torch.cuda.current_stream().record_event()
            while not self._last.query():
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.0002)
        except RuntimeError as error:
            self.fail("drain", self._ends[-1][0] if self._ends else None, error)
        return True

    def _broke_device(self, error: BaseException) -> bool:
        """Whether this rank's GPU is lost; Triton has words of its own for that."""
        if isinstance(error, RuntimeError):
            try:
                self.world.look_at_device(error)
            except RuntimeError as fault:
                return is_device_fault(fault)
        return False

    def _look_at_device(self, step: int) -> None:
        """Without waiting: which steps the device has done, and whether one broke it."""
        try:
            self._ends.append((step, torch.cuda.current_stream().record_event()))
            while self._ends and self._ends[0][1].query():
                self._ends.popleft()
        except RuntimeError as error:
            self.fail("drain", step, error)

    def _first_suspect(self, step: int | None) -> str:
        if self.synchronous or step is None:
            return "seen right after the call"
        first = self._ends[0][0] if self._ends else step
        since = f"in step {first}" if first == step else f"in one of the steps {first} to {step}"
        return f"{since}, seen here (--check each-step shows the call)"

    def _on_thread_error(self, args: threading.ExceptHookArgs) -> None:
        threading.__excepthook__(args)  # it may be too late for a finding
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
    return ExceptionInfo(type(error).__name__, text_of(error), frames[-30:])
