"""Whether all ranks were started alike: each node of a torchrun has a command line of its own.

What only one of them needs (files to write, deadlines) may differ.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence

from . import __version__
from .session import RunOptions


def start_terms(options: RunOptions, device: str) -> dict[str, str]:
    """What must be the same on every rank, in the user's words."""
    texts = "".join(scenario.model_dump_json() for scenario in options.scenarios)
    return {
        "ppharness": __version__,
        "--tp": str(options.tp_size),
        "the device": device,
        "--target": os.path.basename(options.target),  # a node may have it elsewhere
        "--seed": str(options.seed),
        "--perturb": str(options.perturb),
        "--inject": " ".join(options.injections) or "nothing",
        "-x": "on" if options.stop_at_first else "off",
        "--no-ledger": "off" if options.ledger else "on",
        "the list of scenarios": ", ".join(s.name for s in options.scenarios) or "empty",
        "the checksum of the scenarios": hashlib.sha256(texts.encode()).hexdigest()[:12],
    }


def first_difference(terms: Sequence[Mapping[str, str]], labels: Sequence[str]) -> str | None:
    """The first term that is not the same on all ranks, None where all are.

    Args:
        terms: each rank's `start_terms`, in rank order; `labels` names the ranks.
    """
    for name in terms[0]:
        ranks: dict[str, list[str]] = {}
        for mine, label in zip(terms, labels, strict=True):
            ranks.setdefault(mine.get(name, "not known"), []).append(label)
        if len(ranks) > 1:
            sides = "; ".join(f"{value} on {', '.join(who)}" for value, who in ranks.items())
            return (
                f"the ranks were not started alike: {name} is {sides}; "
                "start every node with the same command"
            )
    return None
