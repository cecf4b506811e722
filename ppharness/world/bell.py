"""A word in shared memory that one process rings and others sleep on: ``futex(2)``.

Whoever waits takes no time from whoever works, and goes on as soon as it rings.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())  # number of the system call
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1
_NAP = 0.0005  # seconds, where the number is not known
_syscall = ctypes.CDLL(None).syscall


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Bell:
    """Rung by one rank only; no ring is missed by who looked at `count` before."""

    def __init__(self, memory: mmap.mmap, place: int):
        self._word = ctypes.c_uint32.from_buffer(memory, place)
        self._address = ctypes.c_void_p(ctypes.addressof(self._word))

    @property
    def count(self) -> int:
        """Rings so far, modulo 2**32."""
        return self._word.value

    def ring(self) -> None:
        """Wakes all who wait."""
        self._word.value += 1
        if _FUTEX is not None:
            _syscall(_FUTEX, self._address, _WAKE, _ALL, None, None, 0)

    def wait(self, count: int, seconds: float) -> None:
        """Until it has rung since `count`, at most `seconds`; may come back early."""
        if _FUTEX is None:
            time.sleep(min(seconds, _NAP))
            return
        limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        _syscall(_FUTEX, self._address, _WAIT, ctypes.c_uint32(count), ctypes.byref(limit), None, 0)
