"""Scenario files -> ``Scenario``, or every fault with its line.

A file is untrusted: see ``nodes`` for what its YAML may hold.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ppharness.scenario.model import KeyPath, Scenario, faults, key_path, listing, nearest
from ppharness.scenario.nodes import (
    UNKNOWN,
    Node,
    Problem,
    Problems,
    ScenarioError,
    documents,
    show,
)

__all__ = ["Problem", "ScenarioError", "display_path", "read_scenario_file", "read_with_lines"]

MAX_BYTES = 1 << 20  # of a file
_NOT_TEXT = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_SET_BY_READER = "file"  # a field of Scenario that is no key of a file


def read_scenario_file(path: str | os.PathLike[str]) -> list[Scenario]:
    """The scenarios of a YAML file, one a document, in order.

    Raises ``ScenarioError`` with all faults where the file is missing, is not YAML or has a
    document that is not a scenario.
    """
    found, problems = read_with_lines(path)
    if problems:
        raise ScenarioError(problems)
    return [scenario for scenario, _ in found]


def read_with_lines(
    path: str | os.PathLike[str],
) -> tuple[list[tuple[Scenario, int]], list[Problem]]:
    """The right scenarios of a file, each with the line of its name, and all faults."""
    problems = Problems(display_path(path))
    found: list[tuple[Scenario, int]] = []
    first: dict[str, int] = {}
    text = read_text(path, problems)
    for node in documents(text, problems) if text is not None else ():
        scenario = _to_scenario(node, problems)
        if problems.full:
            break
        if scenario is None:
            continue
        line = node.line_at(("name",))
        if first.setdefault(scenario.name, line) != line:
            allowed = f"a name of its own (line {first[scenario.name]} has this one)"
            problems.value(line, "name", repr(scenario.name), allowed)
            continue
        found.append((scenario, line))
    if not found and not problems.all:
        problems.add(1, None, "no scenario", "at least one scenario", "no scenario in this file")
    return found, problems.in_order()


def display_path(path: str | os.PathLike[str]) -> str:
    """``path`` relative to the working directory when below it, else as it was given."""
    try:
        return os.fspath(Path(os.path.abspath(path)).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return os.fspath(path)


def read_text(path: str | os.PathLike[str], problems: Problems) -> str | None:
    """A file's text, None where it cannot be had, with the reason in ``problems``."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "something that is not a regular file"
            problems.value(None, None, kind, "a YAML file")
            return None
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = show(getattr(error, "strerror", None) or str(error))
        problems.add(None, None, reason, "a YAML file", f"cannot be read: {reason}")
        return None
    if len(data) > MAX_BYTES:
        problems.value(None, None, f"a file over {MAX_BYTES} bytes", f"at most {MAX_BYTES} bytes")
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.value(line, None, f"byte 0x{data[error.start]:02x}, not UTF-8", "UTF-8 text")
        return None
    if bad := _NOT_TEXT.search(text):
        line = len(_LINE_END.findall(text, 0, bad.start())) + 1
        problems.value(line, None, f"control character {bad.group()!r}", "text")
        return None
    return text


def _to_scenario(node: Node, problems: Problems) -> Scenario | None:
    """The scenario of a document; None where it is wrong, with all faults in ``problems``."""
    if not isinstance(node.value, dict):
        if node.value is not UNKNOWN:
            allowed = f"a mapping with the keys {listing(_keys(_schema()))}"
            problems.value(node.line, None, node.found, allowed)
        return None
    fields = _Fields(node, problems)
    try:
        scenario = Scenario.model_validate({**node.value, _SET_BY_READER: problems.file})
    except ValidationError as error:
        fields.add(error.errors(include_url=False, include_context=False))
        scenario = None
    if _SET_BY_READER in node.children:
        fields.add_unknown_key((_SET_BY_READER,))
    if scenario is None and not problems.full:
        for fault in faults(_without(node.value, fields.wrong)):
            line, key = node.line_at(fault.path), key_path(fault.path) or None
            problems.value(line, key, fault.found, fault.allowed, fault.hint)
            if problems.full:
                break
    return scenario


def _without(data: dict[str, Any], paths: set[KeyPath]) -> dict[str, Any]:
    """``data`` with ``UNKNOWN`` at ``paths``, also where nothing is."""
    lacking: dict[KeyPath, dict[Any, Any]] = {}
    for path in paths:
        lacking.setdefault(path[:-1], {})[path[-1]] = None

    def copy(value: Any, at: KeyPath) -> Any:
        if at in paths:
            return UNKNOWN
        if isinstance(value, tuple):
            return tuple(copy(v, (*at, i)) for i, v in enumerate(value))
        if isinstance(value, dict):
            return {k: copy(v, (*at, k)) for k, v in (lacking.get(at, {}) | value).items()}
        return value

    copied: dict[str, Any] = copy(data, ())
    return copied


class _Fields:
    """Turns what pydantic says of the fields of a document into problems."""

    def __init__(self, node: Node, problems: Problems) -> None:
        self.node = node
        self.problems = problems
        self.wrong: set[KeyPath] = set()  # wrong values, and right ones under a wrong key

    def add(self, errors: list[Any]) -> None:
        places = []
        for error in errors:
            if self.problems.full:
                return
            if error["type"] == "extra_forbidden":
                self.add_unknown_key(error["loc"])
            elif error["loc"]:  # else what ``faults`` says, which is asked by itself
                places.append(self._locate(error["loc"]))
        # A union is refused at each of its ways; the one that led furthest was meant.
        outer = {path[:n] for path, _, _ in places for n in range(len(path))}
        for path, found, schema in places:
            if path in self.wrong or path in outer or self.problems.full:
                continue
            self.wrong.add(path)
            value = found.value if found else None
            if value is UNKNOWN:
                continue  # has its problem already
            allowed = _describe(schema, bare=type(value) is int)
            could_be_quoted = isinstance(value, (int, float)) and _takes_text(schema)
            hint = " (a text, so in quotes)" if could_be_quoted else ""
            text = found.found if found else "nothing"
            self.problems.value(self.node.line_at(path), key_path(path), text, allowed, hint)

    def add_unknown_key(self, loc: KeyPath) -> None:
        parent, holder, schema = self._locate(loc[:-1])
        assert holder is not None
        name, keys = str(loc[-1]), _keys(schema)
        near = nearest(name, keys)
        if near is not None and near not in holder.children:
            self.wrong.add((*parent, near))
        shown, allowed = f"'{show(name)}'", listing(keys)
        where = f" in {key_path(parent)}" if parent else ""
        hint = f"did you mean '{near}'?" if near else f"allowed: {allowed}"
        text, full = f"unknown key {shown}{where}; {hint}", show(key_path((*parent, name)), 120)
        self.problems.add(holder.key_lines[name], full, f"unknown key {shown}", allowed, text)

    def _locate(self, loc: KeyPath) -> tuple[KeyPath, Node | None, dict[str, Any]]:
        """Path, value (None: nothing there) and schema for a ``loc`` of pydantic."""
        path: KeyPath = ()
        node: Node | None = self.node
        schema = _schema()
        for step in loc:
            inner = _inner(schema, step)
            if inner is not None:  # else a way of a union
                path, schema = (*path, step), inner
                node = node.children.get(step) if node else None
        return path, node, schema


@functools.cache
def _schema() -> dict[str, Any]:
    return Scenario.model_json_schema()


def _resolve(schema: dict[str, Any]) -> dict[str, Any]:
    return _schema()["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _ways(schema: dict[str, Any]) -> list[dict[str, Any]]:
    ways = [_resolve(way) for way in schema.get("anyOf", [schema])]
    return [way for way in ways if way.get("type") != "null"]


def _inner(schema: dict[str, Any], step: str | int) -> dict[str, Any] | None:
    for way in _ways(schema):
        if isinstance(step, int) and "items" in way:
            return way["items"]
        if step in way.get("properties", ()):
            return way["properties"][step]
    return None


def _keys(schema: dict[str, Any]) -> list[str]:
    return [key for key in _resolve(schema)["properties"] if key != _SET_BY_READER]


def _takes_text(schema: dict[str, Any]) -> bool:
    return any(way.get("type") == "string" and "enum" not in way for way in _ways(schema))


def _describe(schema: dict[str, Any], *, bare: bool = False, many: bool = False) -> str:
    """What is allowed, in words; ``bare``: the limits of an integer alone."""
    said = []
    for way in _ways(schema):
        kind = way.get("type")
        if kind == "integer":
            limits = f"{way['minimum']} to {way['maximum']}" if "minimum" in way else ""
            word = "integers" if many else "an integer"
            said.append(limits if bare and limits else f"{word} from {limits}" if limits else word)
        elif kind == "array":
            said.append(f"a list of {_describe(way['items'], many=True)}")
        elif kind == "object":
            word = "mappings" if many else "a mapping"
            said.append(f"{word} with the keys {listing(_keys(way))}")
        elif kind == "boolean":
            said.append("true or false")
        else:
            said.append(" or ".join(way["enum"]) if "enum" in way else way["description"])
    return " or ".join(said)
