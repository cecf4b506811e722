"""Names of vLLM releases."""

from __future__ import annotations

import re

OLDEST = (0, 24, 0)  # the first release whose model runner has a PPHandler

_VERSION = re.compile(
    r"(?P<release>\d{1,6}(?:\.\d{1,6}){0,4})"
    r"(?P<suffix>(?:(?:a|b|rc)\d{1,6})?(?:\.post\d{1,6})?(?:\.dev\d{1,6})?)"
    r"(?P<local>(?:\+[a-z0-9]+(?:\.[a-z0-9]+){0,8})?)"
)


class VllmCacheError(ValueError):
    """A release cannot be had; says what was tried and what to do."""


def parse_version(text: str) -> tuple[tuple[int, ...], str]:
    """`(release numbers, normal form)`; VllmCacheError unless a version from 0.24.0 on.

    Strict on purpose: the text becomes an argument of pip and a folder's name.
    """
    match = _VERSION.fullmatch(text) if text.isascii() else None
    if match is None:
        raise VllmCacheError(
            f"{text!r} is no vLLM version; expected one such as 0.28.0, 0.28.0rc1 or 0.28.0+cpu"
        )
    numbers = tuple(int(part) for part in match["release"].split("."))
    numbers += (0,) * (3 - len(numbers))
    if numbers < OLDEST:
        raise VllmCacheError(
            f"vLLM {text} is too old: its model runner has no pipeline-parallel handler to test; "
            f"the oldest that can be driven is {'.'.join(map(str, OLDEST))}"
        )
    return numbers, ".".join(map(str, numbers)) + match["suffix"] + match["local"]


def is_drivable(version: str) -> bool:
    """Whether `parse_version` takes it."""
    try:
        parse_version(version)
    except VllmCacheError:
        return False
    return True
