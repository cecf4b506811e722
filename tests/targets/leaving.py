"""A target whose second rank leaves, as if all was well, before the first scenario."""

from __future__ import annotations

import os

from ppharness.targets import BuiltinTarget

if os.environ.get("RANK") == "1":
    os._exit(0)


class LeavesAtStartUp(BuiltinTarget):
    name = "leaves-at-start-up"
