"""What an installed package holds."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_every_package_is_installed() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    there = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for file in (ROOT / "ppharness").rglob("__init__.py")
    }
    scenarios = {"ppharness.configs", "ppharness.configs.more"}  # lie at the top level
    assert set(settings["packages"]) == there | scenarios
