"""A file that is written whole or not at all.

It is written under a temporary name in its own folder, flushed to the disk and
renamed, so that a reader sees the old file or the new one, two runs at once never mix,
and a full disk leaves what was there before.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path


def write_atomically(path: Path | str, content: str | bytes) -> None:
    """Replace ``path`` by ``content`` in one step.

    A link is followed; a device or pipe (``/dev/stdout``) is written directly.

    Raises:
        OSError: it could not be written; ``path`` is as it was.
    """
    data = content
    if isinstance(data, str):
        data = data.encode("utf-8", "backslashreplace")
    mode = mode_of(path)
    if mode is not None and not stat.S_ISREG(mode):
        with open(path, "wb") as stream:
            stream.write(data)
        return
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    temporary = temporary_in(folder)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def temporary_in(folder: str) -> str:
    """A name in `folder` that nobody else has."""
    return os.path.join(folder, f".ppharness-{secrets.token_hex(8)}.tmp")


def mode_of(path: Path | str) -> int | None:
    """The mode of what ``path`` leads to, or None where there is nothing."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _sync_folder(folder: str) -> None:
    """Make the rename itself last; not every file system can, and the file is there."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
