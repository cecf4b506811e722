"""YAML text from anyone -> plain data that knows its lines, or every fault.

The text is parsed to events, never to objects: no tag is resolved, no alias followed, and
depth and number of values are bounded while they are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from ppharness.scenario.model import KeyPath, key_path

MAX_DEPTH = 16  # of lists and mappings in one another; a scenario has 4
MAX_VALUES = 200_000  # in a file
MAX_PROBLEMS = 1000  # told of one file; the search ends there
UNKNOWN = object()  # stands for a value that is known to be wrong
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]{0,30})")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?")


@dataclass(frozen=True)
class Problem:
    """One fault of a scenario file; ``str()`` is one line."""

    file: str | None  # None: the fault is in an argument, not in a file
    line: int | None  # None: the fault is not at a line, such as a missing file
    key: str | None  # such as requests[1].prompt_tokens
    found: str
    allowed: str
    message: str  # all of it in words, but for file and line

    def __str__(self) -> str:
        line = f":{self.line}" if self.line is not None else ""
        where = "" if self.file is None else f"{show(self.file, 400)}{line}: "
        return where + self.message


class ScenarioError(ValueError):
    """Scenarios that cannot be read; ``problems`` has every fault, ``str()`` a line for each."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class Problems:
    """Gathers the problems of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.all: list[Problem] = []

    def add(self, line: int | None, key: str | None, found: str, allowed: str, text: str) -> None:
        self.all.append(Problem(self.file, line, key, found, allowed, text))

    def value(
        self, line: int | None, key: str | None, found: str, allowed: str, hint: str = ""
    ) -> None:
        """Adds one in the usual words."""
        where = f"{key}: " if key else ""
        self.add(line, key, found, allowed, f"{where}found {found}, allowed {allowed}{hint}")

    @property
    def full(self) -> bool:
        return len(self.all) > MAX_PROBLEMS

    def in_order(self) -> list[Problem]:
        """All by line; of more than ``MAX_PROBLEMS`` only that they are more."""
        self.all.sort(key=lambda problem: problem.line or 0)
        if self.full:
            del self.all[MAX_PROBLEMS:]
            text = f"and more faults than these {MAX_PROBLEMS}"
            self.add(None, None, "more faults", "none", text)
        return self.all


def show(text: str, limit: int = 60) -> str:
    """``text`` as one short line that is safe to print on a terminal."""
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    return text if text.isprintable() else repr(text)[1:-1]


@dataclass
class Node:
    """A YAML value: plain data beside the lines that it came from."""

    line: int
    found: str = ""  # as a message shows it
    value: Any = None  # a list as a tuple; UNKNOWN where it has been refused already
    children: dict[str | int, Node] = field(default_factory=dict)  # by key or index
    key_lines: dict[str | int, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Nothing is written there: an empty document, or a key without a value."""
        return self.found == "nothing"

    def line_at(self, path: KeyPath) -> int:
        """The line of a plain value, of the key of any other, of the mapping where it lacks."""
        node, line = self, self.line
        for step in path:
            child, key_line = node.children.get(step), node.key_lines.get(step)
            if child is None:
                break
            beside_key = isinstance(child.value, (tuple, dict)) or child.is_empty
            line = key_line if key_line is not None and beside_key else child.line
            node = child
        return line


class _Refused(Exception):
    """The rest of the file is not looked at."""


def documents(text: str, problems: Problems) -> Iterator[Node]:
    """Each document that is not empty; what is wrong with the YAML goes to ``problems``."""
    try:
        builder = _Builder(yaml.parse(text, Loader=_Loader), problems)
        for event in builder.events:
            if isinstance(event, yaml.DocumentStartEvent):
                node = builder.build(next(builder.events), (), 0)
                if not node.is_empty:
                    yield node
    except _Refused:
        return
    except yaml.YAMLError as error:
        context, start = getattr(error, "context", None), getattr(error, "context_mark", None)
        mark = getattr(error, "problem_mark", None) or start
        line = mark.line + 1 if mark else None
        reason = show(getattr(error, "problem", None) or str(error), 200)
        if context:
            reason += f" {show(context, 200)}" + (f" from line {start.line + 1}" if start else "")
        problems.add(line, None, reason, "YAML", f"not YAML: {reason}")


class _Builder:
    def __init__(self, events: Iterator[yaml.Event], problems: Problems) -> None:
        self.events = events
        self.problems = problems
        self.num_values = 0

    def build(self, event: Any, path: KeyPath, depth: int) -> Node:
        """The value that starts with ``event``; takes its events."""
        node = Node(event.start_mark.line + 1)
        self.num_values += 1
        if depth > MAX_DEPTH:
            self._refuse(node, (), f"more than {MAX_DEPTH} levels", f"{MAX_DEPTH} at most")
            raise _Refused
        if self.num_values > MAX_VALUES:
            self._refuse(node, (), f"more than {MAX_VALUES} values", f"{MAX_VALUES} at most")
            raise _Refused
        if isinstance(event, yaml.AliasEvent):
            self._refuse(node, path, f"alias *{show(str(event.anchor))}", "the value written out")
            return node
        if isinstance(event, yaml.SequenceStartEvent):
            self._fill_list(node, path, depth)
        elif isinstance(event, yaml.MappingStartEvent):
            self._fill_mapping(node, path, depth)
        elif not event.style:
            node.value = _plain_value(event.value)
            node.found = show(event.value) or "nothing"
        else:
            node.value = event.value
            node.found = show(repr(event.value))
        if event.tag is not None:
            self._refuse(node, path, f"tag {show(event.tag)}", "values without a tag")
        return node

    def _refuse(self, node: Node, path: KeyPath, found: str, allowed: str) -> None:
        node.value, node.found = UNKNOWN, found
        self.problems.value(node.line, show(key_path(path)) or None, found, allowed)

    def _fill_list(self, node: Node, path: KeyPath, depth: int) -> None:
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            i = len(node.children)
            node.children[i] = self.build(event, (*path, i), depth + 1)
        node.value = tuple(child.value for child in node.children.values())
        node.found = f"a list of {len(node.children)}"

    def _fill_mapping(self, node: Node, path: KeyPath, depth: int) -> None:
        where = f" in {show(key_path(path))}" if path else ""
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.build(event, path, depth + 1)
            name = key.value
            is_text = isinstance(name, str)
            child = self.build(next(self.events), (*path, name) if is_text else path, depth + 1)
            if name is UNKNOWN:
                continue
            if not is_text:
                text = f"key {key.found}{where} is not a text"
                self.problems.add(key.line, None, key.found, "a text", text)
            elif name in node.children:
                first = node.key_lines[name]
                text = f"key '{show(name)}'{where} is there twice, first on line {first}"
                full = show(key_path((*path, name)))
                self.problems.add(key.line, full, "the key twice", "each key once", text)
            else:
                node.children[name], node.key_lines[name] = child, key.line
        node.value = {name: child.value for name, child in node.children.items()}
        node.found = "a mapping"


def _plain_value(text: str) -> Any:
    """A plain scalar: integers only in decimal, so that neither 010 nor 1:30 surprises."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "yes", "on", "false", "no", "off"):
        return text.lower() in ("true", "yes", "on")
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    return float(text.replace("_", "")) if _FLOAT.fullmatch(text) else text
