"""What the oracle of the accepted counts expects of one rank, for the tests."""

from __future__ import annotations

from typing import Any

from schedules import scenario

from ppharness.oracle.buffers import BufferOracle, Expectation
from ppharness.scenario import Scenario
from ppharness.scenario.schedule import build_schedule


class Followed:
    """One rank's expectations of a scenario, by step and phase."""

    def __init__(self, scenario: Scenario, pp_size: int, pp_rank: int):
        self.schedule = build_schedule(scenario, pp_size)
        oracle = BufferOracle(scenario, self.schedule, pp_size=pp_size, pp_rank=pp_rank)
        self.steps = [oracle.step(step) for step in self.schedule]

    def at(self, step: int, phase: str) -> Expectation:
        return next(e for e in self.steps[step] if e.phase == phase)

    def exact(self, step: int, phase: str) -> list[int]:
        return self.at(step, phase).exact.tolist()

    def buffers(self, step: int) -> list[list[int]]:
        """After each phase of a step, in order."""
        return [e.exact.tolist() for e in self.steps[step]]

    def in_order(self) -> list[Expectation]:
        return [e for step in self.steps for e in step]


def follow(requests: str, events: str = "", *, pp: int, rank: int, **settings: Any) -> Followed:
    return Followed(scenario(requests, events, **settings), pp, rank)
