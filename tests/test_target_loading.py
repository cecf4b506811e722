"""From what ``--target`` names to a target: what is taken, and what is said where it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_bad_input import check_refused
from worlds import JSON, TORCHRUN, VERIFY, Run, WarmPython, run_fresh

HEAD = """
import dataclasses
from ppharness.targets import BuiltinTarget, BuiltinTokenRelay

class Relay(BuiltinTokenRelay):
    def receive(self, batch):  # one fill more than the protocol has, of what is written over
        super().receive(batch)
"""
TAKEN = {
    "class": "class X(BuiltinTarget):\n    exact = True",
    "instance": "class X(BuiltinTarget):\n    def __init__(self): self.exact = True",
    "property": "class X(BuiltinTarget):\n    exact = property(lambda self: True)",
    "inherited": "class Base(BuiltinTarget):\n    exact = True\nclass X(Base):\n    pass",
    "nowhere": "class X(BuiltinTarget):\n    pass",
    "instance-not": "class X(BuiltinTarget):\n    def __init__(self): self.exact = False",
    "property-not": "class X(BuiltinTarget):\n    exact = property(lambda self: False)",
    "name": (
        "class X(BuiltinTarget):\n    name = property(lambda self: 'mine')\n"
        "    version = property(lambda self: '1.2')"
    ),
    "frozen": "@dataclasses.dataclass(frozen=True)\nclass X(BuiltinTarget):\n    size: int = 3",
    "slots": (
        "class X:\n    __slots__ = ()\n"
        "    def make_mamba_state(self, config): return BuiltinTarget().make_mamba_state(config)\n"
        "    def make_token_relay(self, config, channel): return Relay(config, channel)"
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_target_stays_as_it_is(tmp_path: Path, run_world: Callable[..., Run], name: str) -> None:
    """It may say in any way that it is exact, and all of it may be read-only."""
    (tmp_path / "own.py").write_text(f"{HEAD}\n{TAKEN[name]}\n    token_relay_class = Relay\n")
    run = run_world(VERIFY, target="own.py:X")
    exact = name in ("class", "instance", "property", "inherited")
    assert run.code == (1 if exact else 0), run.stdout + run.stderr
    assert run.report is not None
    version = "1.2" if name == "name" else None
    assert run.report["target"] == {"name": "own.py:X", "version": version}


DEEP = "import json\n\ndef load():\n    json.loads('{')\n\nload()\n"
REFUSED = {
    "import": ("import no_such_thing\n", ["own.py does not import", "no_such_thing", "own.py:1)"]),
    "deep-import": (DEEP, ["own.py does not import: JSONDecodeError", "own.py:4)"]),
    "syntax": ("class X(:\n", ["own.py does not import: SyntaxError: invalid", "own.py:1)"]),
    "constructor": (
        f"{HEAD}class X(BuiltinTarget):\n    def __init__(self):\n        int('a')\n",
        ["own.py:X cannot be made: ValueError", "own.py:10)"],
    ),
    "arguments": (
        f"{HEAD}class X(BuiltinTarget):\n    def __init__(self, size): ...\n",
        ["own.py:X cannot be made: TypeError", "'size'"],
    ),
    "exact": (
        f"{HEAD}class X(BuiltinTarget):\n    exact = property(lambda self: 1 / 0)\n",
        ["'exact' of own.py:X cannot be read: ZeroDivisionError"],
    ),
    "instance": (f"{HEAD}X = BuiltinTarget()\n", ["'X' in own.py is an object of type Builtin"]),
    "function": (f"{HEAD}def X(): return BuiltinTarget()\n", ["'X' in own.py is a function"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_said_once(tmp_path: Path, warm_python: WarmPython, name: str) -> None:
    text, said = REFUSED[name]
    (tmp_path / "own.py").write_text(text)
    check_refused(warm_python.run(tmp_path, "run", "--target", "own.py:X"), said)


def test_a_module_that_is_not_there(tmp_path: Path, warm_python: WarmPython) -> None:
    """No line of the import machinery is shown."""
    run = warm_python.run(tmp_path, "run", "--target", "no.such:X")
    assert run.stderr.endswith(
        "no.such does not import: ModuleNotFoundError: No module named 'no'\n"
    )


@pytest.mark.parametrize("place", ["own.py:X", "own:X"])
@pytest.mark.parametrize("launcher", ["run", "torchrun"])
def test_a_target_that_changes_the_folder(tmp_path: Path, launcher: str, place: str) -> None:
    """What the command line names stays what it was, and is shown as it was typed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "verify.yaml").write_text(VERIFY)
    (tmp_path / "own.py").write_text(
        "import os\n"
        "os.chdir('elsewhere' if os.path.isdir('elsewhere') else '.')\n"
        "from ppharness.targets import BuiltinTarget as X\n"
    )
    options = ["--device", "cpu", "--target", place, "--json", JSON, "--markdown", "x.md"]
    if launcher == "run":
        run = run_fresh(tmp_path, "run", "--nproc", "2", *options, "verify.yaml")
    else:
        ranks = ("--nproc-per-node", "2", "-m", "ppharness")
        run = run_fresh(tmp_path, *ranks, *options, "verify.yaml", command=TORCHRUN)
    assert run.code == 0, run.stderr
    assert run.report is not None, run.stderr
    assert run.report["target"]["name"] == place
    assert f"--target {place} " in run.report["reproduce"]
    assert run.outcomes() == {"verify": "passed"}
    assert run.scenarios[0]["file"] == "verify.yaml"
    assert (tmp_path / "x.md").exists() and not list((tmp_path / "elsewhere").iterdir())
