"""What can go wrong between ranks."""

from __future__ import annotations

_LONGEST = 10_000  # characters of a text that are kept


class TransportError(RuntimeError):
    """A wait for another rank did not end well.

    Usual causes: the other rank hangs or waits for something else (`timed_out`), or
    its process ended and the connection with it.
    """

    def __init__(self, waiting_for: str, *, timed_out: bool, detail: str):
        self.waiting_for = waiting_for
        self.timed_out = timed_out
        self.detail = detail
        how = "did not come in time" if timed_out else "was cut off"
        super().__init__(f"{waiting_for}: {how} ({detail})")


class WorldError(ValueError):
    """A world that cannot be made as asked: said to the user, nothing was run."""


class NotPosted(TransportError):
    """The other side will not post what this rank waits for: seen before it could hang."""


def text_of(error: BaseException) -> str:
    """An exception's text, also where getting it raises; its begin where it is very long."""
    try:
        text = str(error)
    except Exception as failure:
        return f"(its text cannot be had: {type(failure).__name__})"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ... ({len(text)} characters)"
    return text
