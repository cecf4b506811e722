"""Scenarios of more steps than are allowed, found before anything runs."""

from __future__ import annotations

from collections.abc import Iterable

from . import schedule
from .model import KeyPath, Scenario, key_path
from .nodes import Problem, Problems, ScenarioError, documents
from .reading import read_text


def check_lengths(scenarios: Iterable[Scenario], pp_size: int | None = None) -> None:
    """Builds the schedule of each scenario that runs on `pp_size` stages.

    Args:
        pp_size: None takes what each scenario says, or 4.

    Raises:
        ScenarioError: with a problem for each that has too many steps.
    """
    problems = []
    for scenario in scenarios:
        size = pp_size or scenario.pp_size or 4
        if scenario.pp_size not in (None, size):
            continue  # it is skipped
        try:
            schedule.build_schedule(scenario, size)
        except schedule.ScheduleError as error:
            problems.append(_problem(scenario, size, error.request))
    if problems:
        raise ScenarioError(problems)


def _problem(scenario: Scenario, pp_size: int, number: int) -> Problem:
    """What is wrong with the request that has not ended when the steps are used up."""
    most = schedule.MAX_STEPS
    path: KeyPath = ("requests", number)
    arrive_at = scenario.requests[number].arrive_at
    if arrive_at >= most:
        path, found = (*path, "arrive_at"), str(arrive_at)
        allowed = f"at most {most - 1}, since a scenario has at most {most} steps"
    else:
        found = f"a request that has not ended after {most} steps on {pp_size} stages"
        allowed = f"scenarios of at most {most} steps"
    key, line = key_path(path), _line_of(scenario, path)
    return Problem(
        scenario.file, line, key, found, allowed, f"{key}: found {found}, allowed {allowed}"
    )


def _line_of(scenario: Scenario, path: KeyPath) -> int | None:
    """Looked up in the file again: most scenarios are never asked for it."""
    if scenario.file is None:
        return None
    problems = Problems(scenario.file)
    text = read_text(scenario.file, problems)
    for node in documents(text or "", problems):
        name = node.children.get("name")
        if name is not None and name.value == scenario.name:
            return node.line_at(path)
    return None
