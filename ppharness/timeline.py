"""When each phase of each step ran on this rank, for ``--trace``."""

from __future__ import annotations

import time

from .findings import TraceEvent
from .world.world import World


class Timeline:
    """Listens to where a rank says it is; one phase ends where the next one begins."""

    def __init__(self, scenario: str, world: World):
        self.scenario, self.world = scenario, world
        self.events: list[TraceEvent] = []
        self._since: tuple[int, str, float] | None = None
        world.on_move = self._move

    def finish(self) -> list[TraceEvent]:
        """All events, the last one ended now."""
        self._move(None, "")
        self.world.on_move = None
        return self.events

    def _move(self, step: int | None, phase: str) -> None:
        now = time.monotonic() * 1e6  # the same clock for all ranks of a host
        if self._since is not None:
            at, name, start = self._since
            self.events.append(
                TraceEvent(
                    self.world.rank, self.world.label, at, name, self.scenario, start, now - start
                )
            )
        self._since = None if step is None else (step, phase, now)
