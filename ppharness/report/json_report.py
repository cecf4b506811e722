"""The result as JSON (schema ``ppharness.result/1``)."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ppharness.findings import RunReport

_NUMBERS = re.compile(r"\[\n\s*-?\d+(?:,\n\s*-?\d+)*\n\s*\]")


def render_json(report: RunReport) -> str:
    """The contract's JSON, ASCII, strict (no NaN, no lone surrogate), ending in a newline."""
    text = json.dumps(plain(report.to_json()), indent=1, allow_nan=False)
    # A list of numbers on one line.  Strings hold no raw newline, so none can match.
    return _NUMBERS.sub(lambda found: f"[{' '.join(found.group()[1:-1].split())}]", text) + "\n"


def plain(value: Any) -> Any:
    """``value`` in what JSON has: NumPy values become Python's, NaN and infinity null."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # a NumPy scalar or array
        return plain(value.tolist())
    return plain(str(value))
