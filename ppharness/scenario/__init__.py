"""What is to happen: the scenario model, its files and which of them are meant."""

from ppharness.scenario.catalog import UsageError, default_suite_dir, resolve, select
from ppharness.scenario.model import Call, Event, Request, Scenario
from ppharness.scenario.reading import Problem, ScenarioError, read_scenario_file

__all__ = [
    "Call",
    "Event",
    "Problem",
    "Request",
    "Scenario",
    "ScenarioError",
    "UsageError",
    "default_suite_dir",
    "read_scenario_file",
    "resolve",
    "select",
]
