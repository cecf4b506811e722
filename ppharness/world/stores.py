"""Connections to the launcher's key-value store."""

from __future__ import annotations

import base64
import os
import socket

import torch.distributed as dist

from .errors import TransportError
from .waiting import START_TIMEOUT

_PART = 4 << 20  # characters of one entry


def set_parts(store: dist.Store, key: str, value: bytes) -> None:
    """A value of any size: torch's store cuts a connection that sends more than 8 MiB."""
    text = base64.b64encode(value).decode()
    parts = [text[first : first + _PART] for first in range(0, len(text), _PART)]
    for number, part in enumerate(parts):
        store.set(f"{key}/{number}", part)
    store.set(key, str(len(parts)))


def get_parts(store: dist.Store, key: str) -> bytes | None:
    """What `set_parts` has put there, None where nothing is."""
    if not store.check([key]):
        return None
    return base64.b64decode(b"".join(store.get(f"{key}/{n}") for n in range(int(store.get(key)))))


def this_attempt() -> str:
    """A room in the store that no other world and no earlier attempt has used."""
    world = os.environ.get("PPHARNESS_WORLD", "0")
    return f"{world}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def connect_store(room: str) -> dist.Store:
    """A connection of its own, so that a thread that waits on another one does not hold it.

    Raises:
        TransportError: there is no store, or its launcher is gone.
    """
    what = "the launcher's store"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "False") != "True":
        raise TransportError(what, timed_out=False, detail="there is none")
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:  # torch's own would try for minutes where the launcher is gone
        socket.create_connection((host, port), timeout=START_TIMEOUT).close()
    except OSError as error:
        raise TransportError(what, timed_out=False, detail=str(error)) from error
    return dist.PrefixStore(f"ppharness/{room}", dist.TCPStore(host, port, is_master=False))
