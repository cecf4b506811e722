"""Triton's interpreter, which runs all kernels of a rank on a CPU.

For each launch it puts its own functions in the place of ``triton.language``'s, and the
old ones back afterwards: a third of the time of a small launch.  Where nothing is compiled
they can as well stay.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


class _Stays:
    def restore(self) -> None:
        """As of the interpreter's own scope, which would put the old functions back."""


def keep_language_replaced() -> None:
    """From here on in this process; a Triton that does it in another way is left as it is."""
    replace: Any = getattr(interpreter, "_patch_lang", None)
    if replace is None:
        return
    done: set[frozenset[int]] = set()
    stays = _Stays()

    def replace_once(kernel: FunctionType) -> _Stays:
        names = kernel.__globals__.values()
        languages = frozenset(id(m) for m in names if m is tl or m is tl.core)
        if languages not in done:
            replace(kernel)
            done.add(languages)
        return stays

    interpreter._patch_lang = replace_once
