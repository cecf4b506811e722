"""Text that came from a target or a file, made safe to show.

Request ids, messages and file names are other people's: they may hold escape
sequences, bidi overrides that reorder a line, or megabytes.
"""

from __future__ import annotations

import re
import unicodedata

from rich.cells import cell_len, set_cell_size

# Control, format (bidi, zero width), surrogate, private, unassigned, and the two separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_XML_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def printable(value: object, *, ascii_only: bool = False) -> str:
    r"""``value`` as one line without invisible characters.

    Control characters (newlines and ESC too), bidi controls, zero-width characters
    and lone surrogates become ``\n``, ``\x1b``, ``\u202e``.  With ``ascii_only``
    every other non-ASCII character is escaped as well.
    """
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escape(c) if (ascii_only and not c.isascii()) or unicodedata.category(c) in _HIDDEN else c
        for c in text
    )


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters, with ``..`` at the end where some were cut."""
    return text if len(text) <= limit else text[: max(0, limit - 2)] + ".."


def message_lines(value: object, *, max_lines: int = 12, max_chars: int = 400) -> list[str]:
    """A message as printable lines, with a note for what was left out."""
    lines = str(value).expandtabs(4).splitlines()
    shown = [clip(printable(line), max_chars) for line in lines[:max_lines]]
    if len(lines) > max_lines:
        shown.append(f"... {len(lines) - max_lines} more lines")
    return shown


def pad(text: str, width: int) -> str:
    """``text`` filled up with blanks to ``width`` terminal cells, never cut."""
    return text if cell_len(text) >= width else set_cell_size(text, width)


def xml_safe(value: object) -> str:
    r"""Characters that XML 1.0 cannot hold, not even as a reference, become ``\x1b``."""
    return _XML_ILLEGAL.sub(lambda found: _escape(found.group()), str(value))


def code_fence(lines: list[str], info: str = "text") -> list[str]:
    """A Markdown code block around ``lines`` that no run of backticks inside can end."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + info, *lines, fence]


def code_span(value: object) -> str:
    """Inline Markdown code: GitHub reads no mention, link, HTML or emphasis in it.

    A vertical bar is escaped, so that it cannot end a cell of a table.
    """
    text = printable(value).replace("|", r"\x7c")
    if not text.strip():
        return "(empty)"
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * (longest + 1)
    gap = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{ticks}{gap}{text}{gap}{ticks}"
