"""The matrix scenarios x targets as text and as Markdown."""

from __future__ import annotations

from typing import Any

from .text import clip, code_span, pad, printable

MARKS = {
    "passed": "ok", "failed": "FAIL", "crashed": "CRASH", "hung": "HUNG", "skipped": "skip",
}  # fmt: skip
_EMOJI = {"passed": "ok", "failed": "**FAIL**", "crashed": "**CRASH**", "hung": "**HUNG**"}
_ENGINE = "vllm/"


def matrix_text(matrix: dict[str, Any]) -> str:
    """A table with a mark per cell, then the first finding of each cell that is red."""
    names = scenario_names(matrix)
    heads = [printable(column["target"]) for column in matrix["columns"]]
    width = max([len("scenario"), *map(len, names)])
    lines = ["  ".join([pad("scenario", width), *heads])]
    for name in names:
        cells = [
            pad(MARKS.get(cell["outcome"], "?") if cell else "-", len(head))
            for head, cell in zip(heads, _cells(matrix, name), strict=True)
        ]
        lines.append("  ".join([pad(name, width), *cells]).rstrip())
    lines.append("")
    for column in matrix["columns"]:
        if column["error"]:
            lines.append(f"{printable(column['target'])}: not run: {printable(column['error'])}")
    for name in names:
        for (targets, text), source in _first_findings(matrix, name):
            link = f"  ({printable(source)})" if source else ""
            lines += [f"{name} on {', '.join(targets)}{link}", f"    {text}"]
    return "\n".join(lines).rstrip() + "\n"


def matrix_markdown(matrix: dict[str, Any], command: str) -> str:
    """The same as a block to paste into an issue; rows link to what they stand for."""
    heads = [printable(column["target"]).replace("|", "\\|") for column in matrix["columns"]]
    lines = [
        f"| scenario | {' | '.join(heads)} |",
        f"| --- |{' --- |' * len(heads)}",
    ]
    names = scenario_names(matrix)
    for name in names:
        source = _source(matrix, name)
        label = f"[{name}]({source})" if source and source.startswith("https://") else name
        marks = [
            _EMOJI.get(cell["outcome"], "skip") if cell else "-" for cell in _cells(matrix, name)
        ]
        lines.append(f"| {label} | {' | '.join(marks)} |")
    lines += ["", f"Made by {code_span(command)} (ppharness {matrix['version']}).", ""]
    for column in matrix["columns"]:
        if column["error"]:
            lines.append(f"* {code_span(column['target'])}: not run: {code_span(column['error'])}")
    for name in names:
        for (targets, text), _ in _first_findings(matrix, name):
            lines.append(f"* {name} on {', '.join(map(code_span, targets))}: {code_span(text)}")
    return "\n".join(lines).rstrip() + "\n"


def scenario_names(matrix: dict[str, Any]) -> list[str]:
    """All scenarios, in the order in which they were run."""
    found: dict[str, None] = {}
    for column in matrix["columns"]:
        found.update((s["name"], None) for s in column["result"]["scenarios"])
    return list(found)


def first_finding(cell: dict[str, Any]) -> str | None:
    """One line on a cell that did not pass: kind, ranks, place, what was seen, where."""
    if not cell["findings"]:
        return None
    first = cell["findings"][0]
    alike = [
        f["label"]
        for f in cell["findings"]
        if (f["kind"], f["step"], f["phase"]) == (first["kind"], first["step"], first["phase"])
    ]
    ranks = ", ".join(dict.fromkeys(alike))
    text = f"{first['kind']} on {ranks}, step {first['step']}, {first['phase']}: {first['message']}"
    frames = (first.get("exception") or {}).get("frames") or []
    if frames:
        inner = frames[-1]
        path = inner["file"]
        path = path[path.rfind(_ENGINE) :] if _ENGINE in path else path.rsplit("/", 1)[-1]
        text += f" [{path}:{inner['line']} in {inner['function']}]"
    return clip(printable(" ".join(text.split())), 300)


def _cells(matrix: dict[str, Any], name: str) -> list[dict[str, Any] | None]:
    return [
        next((s for s in column["result"]["scenarios"] if s["name"] == name), None)
        for column in matrix["columns"]
    ]


def _source(matrix: dict[str, Any], name: str) -> str | None:
    return next((c["source"] for c in _cells(matrix, name) if c and c.get("source")), None)


def _first_findings(
    matrix: dict[str, Any], name: str
) -> list[tuple[tuple[list[str], str], str | None]]:
    """(targets with the same first finding, its text), source."""
    alike: dict[str, list[str]] = {}
    for column, cell in zip(matrix["columns"], _cells(matrix, name), strict=True):
        text = first_finding(cell) if cell else None
        if text:
            alike.setdefault(text, []).append(printable(column["target"]))
    return [((targets, text), _source(matrix, name)) for text, targets in alike.items()]
