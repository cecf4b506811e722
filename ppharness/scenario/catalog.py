"""Which scenarios are meant: files, folders and names -> ``Scenario``; and ``-k``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ppharness.scenario.model import Scenario, listing, nearest
from ppharness.scenario.nodes import Problem, ScenarioError, show
from ppharness.scenario.reading import display_path, read_with_lines

MAX_EXPRESSION = 2000  # characters of a -k expression
MAX_PARENTHESES = 50  # in one another
MORE = "more"  # folder of scenarios beside the default suite
_SUFFIXES = (".yaml", ".yml")


class UsageError(ValueError):
    """A command line that cannot be meant."""


def default_suite_dir() -> Path:
    """The folder of the built-in scenarios: in an installed package, else in the repository.

    Raises ``ScenarioError`` where there is neither.
    """
    from importlib import resources  # only here: its import costs as much as ten files

    packaged = resources.files("ppharness") / "configs"
    if os.path.isdir(str(packaged)):
        return Path(str(packaged))
    repository = Path(__file__).resolve().parents[2]
    if (repository / "pyproject.toml").is_file() and (repository / "configs").is_dir():
        return repository / "configs"
    text = "the built-in scenarios are missing from this installation"
    raise ScenarioError([Problem(None, None, None, "no folder configs", "the folder", text)])


def resolve(
    args: Sequence[str] = (), default_dirs: Sequence[str | os.PathLike[str]] | None = None
) -> list[Scenario]:
    """The scenarios that the arguments name, in their order, each once.

    An argument is a YAML file, a folder of them, or a name from ``default_dirs`` (default:
    the built-in suite) or their folder ``more``; what exists as a path is taken as one.  No
    argument: all of ``default_dirs``; ``more``: all of that folder.

    Raises ``ScenarioError`` with the faults of all files read, for a name
    that is not known, for a folder without scenarios, and for two scenarios of one name.
    """
    reader = _Reader()
    suite: list[_Found] | None = None
    more: list[_Found] = []
    for arg in args:
        if os.path.isdir(arg):
            reader.take(reader.folder(arg))
        elif os.path.lexists(arg) or os.sep in arg or arg.lower().endswith(_SUFFIXES):
            reader.take(reader.file(arg))
        else:
            if suite is None:
                suite = _read_suite(reader, default_dirs)
                more = _read_suite(reader, _more_dirs(default_dirs))
            found = more if arg == MORE and more else _named(arg, suite + more, reader.problems)
            reader.take(found)
    if not args:
        reader.take(_read_suite(reader, default_dirs))
    if reader.problems:
        raise ScenarioError(list(dict.fromkeys(reader.problems)))
    return [scenario for scenario, _ in reader.taken.values()]


def select(scenarios: Sequence[Scenario], expr: str | None) -> list[Scenario]:
    """Those whose name matches a pytest-like ``-k`` expression, which may be none of them.

    Words match as parts of the name, in either case; ``and``, ``or``, ``not`` and
    parentheses join them.  A blank expression matches all.  Raises ``UsageError`` where the
    expression is malformed.
    """
    if expr is None or not expr.strip():
        return list(scenarios)
    matches = _Expression(expr).parse()
    return [scenario for scenario in scenarios if matches(scenario.name)]


_Found = tuple[Scenario, int]  # with the line of its name


class _Reader:
    """Reads each file once and keeps what is taken, by name."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.taken: dict[str, _Found] = {}
        self.files: dict[str, list[_Found]] = {}  # by real path

    def take(self, found: list[_Found]) -> None:
        for scenario, line in found:
            first, first_line = self.taken.setdefault(scenario.name, (scenario, line))
            if first is not scenario:
                allowed = f"a name of its own ({first.file}:{first_line} has this one)"
                text = f"name: found {scenario.name!r}, allowed {show(allowed, 400)}"
                self.problems.append(
                    Problem(scenario.file, line, "name", repr(scenario.name), allowed, text)
                )

    def file(self, path: str | os.PathLike[str]) -> list[_Found]:
        real = os.path.realpath(path)
        if real not in self.files:
            self.files[real], problems = read_with_lines(path)
            self.problems += problems
        return self.files[real]

    def folder(self, path: str | os.PathLike[str]) -> list[_Found]:
        shown = display_path(path)
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            reason = error.strerror or "an error"
            text = f"cannot be read: {reason}"
            self.problems.append(Problem(shown, None, None, reason, "a folder", text))
            return []
        names = [n for n in names if n.lower().endswith(_SUFFIXES) and not n.startswith(".")]
        if not names:
            allowed = "at least one *.yaml or *.yml file"
            text = f"found a folder without scenarios, allowed {allowed}"
            self.problems.append(Problem(shown, None, None, "none", allowed, text))
        found: list[_Found] = []
        root = os.path.realpath(path)
        for name in names:
            inner = os.path.join(path, name)
            real = os.path.realpath(inner)
            if os.path.commonpath([root, real]) == root:
                found += self.file(inner)
                continue
            allowed = "links to files in this folder"
            text = f"found a link that leaves the folder, allowed {allowed}"
            self.problems.append(
                Problem(display_path(inner), None, None, f"a link to {real}", allowed, text)
            )
        return found


def _read_suite(
    reader: _Reader, default_dirs: Sequence[str | os.PathLike[str]] | None
) -> list[_Found]:
    folders = [default_suite_dir()] if default_dirs is None else default_dirs
    return [found for folder in folders for found in reader.folder(folder)]


def _more_dirs(default_dirs: Sequence[str | os.PathLike[str]] | None) -> list[Path]:
    """The longer scenarios, which run when they are named, or all by the name ``more``."""
    folders = [default_suite_dir()] if default_dirs is None else default_dirs
    return [Path(folder) / MORE for folder in folders if (Path(folder) / MORE).is_dir()]


def _named(name: str, suite: list[_Found], problems: list[Problem]) -> list[_Found]:
    found = [entry for entry in suite if entry[0].name == name]
    if not found:
        names = [scenario.name for scenario, _ in suite]
        near = nearest(name, names)
        hint = f"; did you mean '{near}'?" if near else ""
        text = f"unknown scenario '{show(name)}': no file, no folder and no built-in name{hint}"
        problems.append(Problem(None, None, None, show(name), listing(names), text))
    return found


_Matcher = Callable[[str], bool]


class _Expression:
    """or: and ("or" and)*; and: not ("and" not)*; not: "not" not | "(" or ")" | word."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MAX_EXPRESSION:
            raise self._error(f"it has {len(text)} characters, allowed {MAX_EXPRESSION}")
        self.tokens: Iterator[str] = iter(re.findall(r"[()]|[^\s()]+", text))
        self.token: str | None = None  # the next, None at the end
        self._advance()

    def parse(self) -> _Matcher:
        matcher = self._or(0)
        if self.token is not None:
            raise self._error(f"expected 'and', 'or' or the end, found '{show(self.token)}'")
        return matcher

    def _advance(self) -> None:
        self.token = next(self.tokens, None)

    def _error(self, reason: str) -> UsageError:
        return UsageError(f"-k '{show(self.text)}': {reason}")

    def _or(self, depth: int) -> _Matcher:
        parts = [self._and(depth)]
        while self.token == "or":
            self._advance()
            parts.append(self._and(depth))
        return parts[0] if len(parts) == 1 else lambda name: any(part(name) for part in parts)

    def _and(self, depth: int) -> _Matcher:
        parts = [self._not(depth)]
        while self.token == "and":
            self._advance()
            parts.append(self._not(depth))
        return parts[0] if len(parts) == 1 else lambda name: all(part(name) for part in parts)

    def _not(self, depth: int) -> _Matcher:
        negated = False
        while self.token == "not":
            self._advance()
            negated = not negated
        matcher = self._operand(depth)
        return (lambda name: not matcher(name)) if negated else matcher

    def _operand(self, depth: int) -> _Matcher:
        word = self.token
        if word is None or word in (")", "and", "or"):
            found = "the end" if word is None else f"'{word}'"
            raise self._error(f"expected a word, 'not' or '(', found {found}")
        self._advance()
        if word != "(":
            return lambda name: word.lower() in name.lower()
        if depth == MAX_PARENTHESES:
            raise self._error(f"more than {MAX_PARENTHESES} parentheses in one another")
        matcher = self._or(depth + 1)
        if self.token != ")":
            found = "the end" if self.token is None else f"'{show(self.token)}'"
            raise self._error(f"expected ')', found {found}")
        self._advance()
        return matcher
