"""Faults on purpose: ``KIND@RANK:STEP[:PHASE]``."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from .findings import PHASES

# kind -> phase in which it happens when none is given
KINDS = {
    "raise": "postprocess_state",
    "kill": "forward",
    "segv": "forward",
    "exit0": "forward",
    "stall": "forward",
    "slow": "forward",
    "skip-broadcast": "relay",
    "corrupt-slot": "postprocess_state",
    "corrupt-hidden": "forward",
    "corrupt-counts": "relay",
    "drift": "forward",
    "late-abort": "free",
}
_ANY_PHASE = ("raise", "kill", "segv", "exit0", "stall")
# Of the other two phases, one only reads the buffer and one comes after the last step.
_STRUCK_IN = tuple(phase for phase in PHASES if phase not in ("at_use", "drain"))
_FORM = re.compile(r"^([a-z0-9-]+)@(?:PP(\d+)(?:_TP(\d+))?|(\d+)):(\d+)(?::([a-z_]+))?$")


class InjectionError(ValueError):
    """An injection that cannot be meant."""


@dataclass(frozen=True)
class Injection:
    """One fault: what, on which rank, in which step and phase."""

    text: str
    kind: str
    rank: int  # global
    step: int
    phase: str


def parse_injection(text: str, *, world_size: int, tp_size: int) -> Injection:
    """Reads ``kill@PP2:5:relay``.

    Raises:
        InjectionError: unknown kind or phase, a rank that does not exist, another form.
    """
    match = _FORM.match(text)
    if match is None:
        raise InjectionError(
            f"--inject: found {text!r}, allowed: KIND@RANK:STEP or KIND@RANK:STEP:PHASE, "
            "RANK as 2, PP2 or PP2_TP1"
        )
    kind, pp, tp, plain, step, phase = match.groups()
    if kind not in KINDS:
        raise InjectionError(f"--inject: unknown kind {kind!r}{_nearest(kind, KINDS)}")
    if phase is not None and phase not in PHASES:
        raise InjectionError(f"--inject: unknown phase {phase!r}{_nearest(phase, _STRUCK_IN)}")
    if phase is not None and phase != KINDS[kind] and kind not in _ANY_PHASE:
        raise InjectionError(f"--inject: {kind} happens in {KINDS[kind]} only, found {phase!r}")
    if phase is not None and phase not in _STRUCK_IN:
        raise InjectionError(
            f"--inject: {kind} cannot happen in {phase}; allowed: {', '.join(_STRUCK_IN)}"
        )
    rank = int(plain) if plain is not None else int(pp) * tp_size + int(tp or 0)
    if rank >= world_size or int(tp or 0) >= tp_size:
        raise InjectionError(f"--inject: {text!r} names a rank outside this world of {world_size}")
    return Injection(text, kind, rank, int(step), phase or KINDS[kind])


def _nearest(name: str, allowed: object) -> str:
    names = list(allowed)  # type: ignore[call-overload]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint}; allowed: {', '.join(names)}"
