"""What a target says when it cannot run."""

from __future__ import annotations


class TargetError(ValueError):
    """A release cannot be loaded or driven.

    Usual causes: a small package that its import needs is missing, a torch that the
    release does not work with, or a release so new (or a branch so changed) that a
    module, a name or a signature that the adapters rely on is gone.
    """


class TargetSkip(Exception):
    """This target cannot run this scenario, for a reason that is no fault of either."""
