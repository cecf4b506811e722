"""What this target says when it cannot run.

A TargetError here means that a release cannot be loaded or driven.  Usual causes: a
small package that its import needs is missing, a torch that the release does not work
with, or a release so new (or a branch so changed) that a module, a name or a signature
that the adapters rely on is gone.  A TargetSkip means that the target cannot run one
scenario, for a reason that is no fault of either.
"""

from __future__ import annotations

from ..interface import TargetError, TargetSkip

__all__ = ["TargetError", "TargetSkip"]
