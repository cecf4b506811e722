"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from worlds import JSON, Run, WarmPython

pytest.register_assert_rewrite("scenario_files")  # as its assertions were in a test file


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """One a test process; started by its first run."""
    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture
def run_world(tmp_path: Path, warm_python: WarmPython) -> Callable[..., Run]:
    """``ppharness run`` on CPU ranks, in the test's own folder.

    ``run_world(SCENARIO, ..., nproc=3, target="builtin", args=())``: a scenario is the text
    of a file (anything with a line end), or what a command line takes.
    """

    def run(
        *scenarios: str,
        nproc: int = 3,
        target: str = "builtin",
        args: tuple[str, ...] = (),
        timeout: float = 120.0,
    ) -> Run:
        named = []
        for number, scenario in enumerate(scenarios):
            if "\n" in scenario:
                name = f"scenario-{number}.yaml"
                (tmp_path / name).write_text(scenario)
                scenario = name
            named.append(scenario)
        return warm_python.run(
            tmp_path, "run", "--nproc", str(nproc), "--target", target, "--device", "cpu",
            "--timeout", "20", "--json", JSON, *args, *named, timeout=timeout,
        )  # fmt: skip

    return run
