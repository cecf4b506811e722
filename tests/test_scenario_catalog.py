"""Which scenarios arguments and ``-k`` expressions mean."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from pathlib import Path

import pytest

from ppharness.scenario import (
    Request,
    Scenario,
    ScenarioError,
    UsageError,
    catalog,
    default_suite_dir,
    resolve,
    select,
)

REQUESTS = "requests: [{id: a, prompt_tokens: 5, max_tokens: 3}]\n"


def put(path: Path, *names: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("---\n".join(f"name: {name}\n{REQUESTS}" for name in names))
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a suite, a folder of more, and a file."""
    put(tmp_path / "suite" / "b.yaml", "decode-basic", "decode-drafts")
    put(tmp_path / "suite" / "a.yml", "abort-in-flight")
    put(tmp_path / "more" / "2.yaml", "two")
    put(tmp_path / "more" / "1.yaml", "one")
    put(tmp_path / "more" / ".hidden.yaml", "hidden")
    put(tmp_path / "more" / "inner" / "3.yaml", "three")
    (tmp_path / "more" / "notes.txt").write_text("not a scenario")
    put(tmp_path / "own.yaml", "own")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ([], ["abort-in-flight", "decode-basic", "decode-drafts"]),
        (["own.yaml"], ["own"]),
        (["more"], ["one", "two"]),
        (["more/"], ["one", "two"]),
        (["decode-drafts"], ["decode-drafts"]),
        (["own.yaml", "decode-basic", "more"], ["own", "decode-basic", "one", "two"]),
        (["own.yaml", "./own.yaml"], ["own"]),
        (["more/2.yaml", "more"], ["two", "one"]),
        (["decode-basic", "suite"], ["decode-basic", "abort-in-flight", "decode-drafts"]),
    ],
)
def test_resolve(place: Path, args: list[str], names: list[str]) -> None:
    assert [scenario.name for scenario in resolve(args, ["suite"])] == names


def test_files_are_shown_below_the_working_directory(place: Path) -> None:
    found = resolve([str(place / "own.yaml"), str(place / "more")], ["suite"])
    assert [scenario.file for scenario in found] == ["own.yaml", "more/1.yaml", "more/2.yaml"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["decode-basik"], "unknown scenario 'decode-basik': no file, no folder and no built-in"),
        (["decode-basik"], "; did you mean 'decode-basic'?"),
        (["\x1b[0m"], r"unknown scenario '\x1b[0m'"),
        (["gone.yaml"], "gone.yaml: cannot be read: No such file or directory"),
        (["gone/x"], "gone/x: cannot be read: No such file or directory"),
        (["more/notes.txt"], "more/notes.txt:1: found not a scenario, allowed a mapping"),
    ],
)
def test_bad_argument(place: Path, args: list[str], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        resolve(args, ["suite"])
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


def test_folder_without_scenarios(place: Path) -> None:
    (place / "empty").mkdir()
    with pytest.raises(ScenarioError, match=r"empty: found a folder without scenarios"):
        resolve(["empty"])


def test_one_name_in_two_files(place: Path) -> None:
    put(place / "more" / "9.yaml", "nine", "own")
    with pytest.raises(ScenarioError) as caught:
        resolve(["own.yaml", "more"], ["suite"])
    said = "more/9.yaml:4: name: found 'own', allowed a name of its own (own.yaml:1 has this one)"
    assert str(caught.value) == said


def test_one_name_twice_in_a_file(place: Path) -> None:
    put(place / "own.yaml", "own", "own")
    with pytest.raises(ScenarioError) as caught:
        resolve(["own.yaml"], ["suite"])
    said = "own.yaml:4: name: found 'own', allowed a name of its own (line 1 has this one)"
    assert str(caught.value) == said


def test_faults_of_all_arguments_at_once(place: Path) -> None:
    (place / "more" / "0.yaml").write_text(f"name: zero\npp_size: 0\n{REQUESTS}")
    (place / "own.yaml").write_text("nam: own\n" + REQUESTS)
    with pytest.raises(ScenarioError) as caught:
        resolve(["own.yaml", "more", "more/0.yaml", "nothing-like-it"], ["suite"])
    assert [str(p).partition(" ")[0] for p in caught.value.problems] == [
        "own.yaml:1:",
        "more/0.yaml:2:",
        "unknown",
    ]


def test_links(place: Path) -> None:
    (place / "more" / "4.yaml").symlink_to("1.yaml")  # the same file: read once
    assert [scenario.name for scenario in resolve(["more"])] == ["one", "two"]
    (place / "linked").symlink_to("more")  # a link to the folder itself is what was asked for
    assert [scenario.name for scenario in resolve(["linked"])] == ["one", "two"]
    (place / "more" / "5.yaml").symlink_to(place / "own.yaml")
    (place / "more" / "6.yaml").symlink_to("gone.yaml")
    with pytest.raises(ScenarioError) as caught:
        resolve(["more"])
    leaves, gone = map(str, caught.value.problems)
    said = "found a link that leaves the folder, allowed links to files in this folder"
    assert leaves == f"more/5.yaml: {said}"
    assert gone.startswith("more/6.yaml: cannot be read")


def test_folder_named_as_a_file(place: Path) -> None:
    (place / "more" / "x.yaml").mkdir()
    with pytest.raises(ScenarioError, match=r"x\.yaml: found a folder, allowed a YAML file"):
        resolve(["more"])


def test_default_suite_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "ppharness"
    (package / "scenario").mkdir(parents=True)
    monkeypatch.setattr(importlib.resources, "files", lambda name: tmp_path / name)
    monkeypatch.setattr(catalog, "__file__", str(package / "scenario" / "catalog.py"))
    (tmp_path / "configs").mkdir()  # beside an installed package: someone else's
    with pytest.raises(ScenarioError, match="missing from this installation"):
        default_suite_dir()
    (tmp_path / "pyproject.toml").touch()
    assert default_suite_dir() == tmp_path / "configs"
    (package / "configs").mkdir()
    assert default_suite_dir() == package / "configs"


def test_reading_many_is_fast(tmp_path: Path) -> None:
    for i in range(40):
        put(tmp_path / f"{i}.yaml", f"s{i}")
    code = (
        "import sys, time; from ppharness.scenario.catalog import resolve\n"
        "t = time.process_time()\n"
        "assert len(resolve(sys.argv[1:])) == 40 and 'torch' not in sys.modules\n"
        "assert time.process_time() - t < 0.4"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)


NAMES = ["decode-basic", "decode-drafts", "abort-in-flight", "android", "not-here"]


@pytest.mark.parametrize(
    ("expr", "matching"),
    [
        (None, [0, 1, 2, 3, 4]),
        ("", [0, 1, 2, 3, 4]),
        ("  ", [0, 1, 2, 3, 4]),
        ("decode", [0, 1]),
        ("DECODE-B", [0]),
        ("code-dra", [1]),
        ("zzz", []),
        ("not decode", [2, 3, 4]),
        ("not not decode", [0, 1]),
        ("decode or abort", [0, 1, 2]),
        ("decode and not basic", [1]),
        ("abort or decode and basic", [0, 2]),
        ("(abort or decode) and (basic or flight)", [0, 2]),
        ("not(decode or abort)", [3, 4]),
        ("((decode))", [0, 1]),
        ("andr", [3]),
        ("not-here", [4]),
        ("-", [0, 1, 2, 4]),
        ("And", [3]),
        ("\tdecode\nand basic ", [0]),
        ("__import__", []),
    ],
)
def test_select(expr: str | None, matching: list[int]) -> None:
    request = Request(id="a", prompt_tokens=1, max_tokens=1)
    scenarios = [Scenario(name=name, requests=(request,)) for name in NAMES]
    assert [s.name for s in select(scenarios, expr)] == [NAMES[i] for i in matching]


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        ("and", "-k 'and': expected a word, 'not' or '(', found 'and'"),
        ("decode or", "found the end"),
        ("decode not", "expected 'and', 'or' or the end, found 'not'"),
        ("decode basic", "expected 'and', 'or' or the end, found 'basic'"),
        ("not", "found the end"),
        ("(decode", "expected ')', found the end"),
        ("(decode basic)", "expected ')', found 'basic'"),
        ("decode)", "expected 'and', 'or' or the end, found ')'"),
        ("()", "expected a word, 'not' or '(', found ')'"),
        ("(" * 60 + "a" + ")" * 60, "more than 50 parentheses in one another"),
        ("a or " * 1000, "it has 5000 characters, allowed 2000"),
        ("a \x1b", r"found '\x1b'"),
    ],
)
def test_malformed_expression(expr: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        select([], expr)
    assert said in str(caught.value)
