"""Connections to the launcher's key-value store."""

from __future__ import annotations

import os
import socket

import torch.distributed as dist

from .errors import TransportError
from .waiting import START_TIMEOUT


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
