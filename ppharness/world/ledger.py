"""What ranks are about to post, compared before they could hang on it.

Each rank writes, per step, the batch it built and the collectives it posts.  A
checksum of that goes along with the agreement at the step's end, which all ranks
take part in anyway; the entries are gathered only where a step did not go well.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_CLIP = 160  # characters of an entry in a message


@dataclass(frozen=True)
class Post:
    """One collective on the relay's communicator."""

    what: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"broadcast {self.what} {self.dtype} {list(self.shape)} from the last stage"


@dataclass
class Ledger:
    """One rank's entries of the step that runs."""

    compared: bool = True
    step: int | None = None
    batch: str = ""  # the rows that this rank built
    posts: list[Post] = field(default_factory=list)
    broken: bool = False  # the relay of this rank raised, so posts are missing

    def start(self, step: int) -> None:
        """A new step."""
        self.step, self.batch, self.posts, self.broken = step, "", [], False

    @property
    def checksum(self) -> int:
        """The same on all ranks that wrote the same; 0 when not compared."""
        if not self.compared:
            return 0
        shapes = [(p.dtype, p.shape) for p in self.posts]
        return zlib.crc32(f"{self.batch}{shapes}".encode())


@dataclass(frozen=True)
class Disagreement:
    """Ranks that are about to do different things, and the odd ones among them."""

    odd: tuple[int, ...]  # places in the list of ledgers
    message: str


def find_disagreement(
    ledgers: Sequence[Ledger], likely: Sequence[bool], labels: Sequence[str]
) -> Disagreement | None:
    """Compares one step's ledgers of all stages of a pipeline, first stage first.

    Args:
        likely: per stage, whether its batch and posts are those of the schedule; tells
            who is odd where there is no majority.
        labels: the ranks' names.
    """
    batches = [ledger.batch or "no rows" for ledger in ledgers]
    if len(set(batches)) > 1:
        return _disagreement(batches, likely, labels)
    for place in range(max(len(ledger.posts) for ledger in ledgers)):
        posts = [x.posts[place] if place < len(x.posts) else None for x in ledgers]
        if len({(p.dtype, p.shape) if p else None for p in posts}) > 1:
            said = [str(p) if p else "no broadcast" for p in posts]
            return _disagreement(said, likely, labels)
    return None


def _disagreement(
    column: Sequence[str], likely: Sequence[bool], labels: Sequence[str]
) -> Disagreement:
    (common, count), *others = Counter(column).most_common()
    if others and others[0][1] == count:  # no majority
        trusted = {text for text, fine in zip(column, likely, strict=True) if fine}
        common = trusted.pop() if len(trusted) == 1 else column[0]
    odd = tuple(place for place, text in enumerate(column) if text != common)
    sides: dict[str, list[str]] = {}
    for label, text in zip(labels, column, strict=True):
        sides.setdefault(text, []).append(label)
    said = "; ".join(f"{', '.join(who)}: {text[:_CLIP]}" for text, who in sides.items())
    return Disagreement(odd, f"ranks disagree on what comes next: {said}")
