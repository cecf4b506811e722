"""Several ranks on one GPU, which NCCL refuses unless it is made to see different hosts.

Set in each rank before a communicator is made, and only where GPUs are shared.  If the
communicators still cannot be made, CUDA tensors go through the host over gloo.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from .device import DevicePlan
from .flight_record import remember_collectives
from .layout import Layout

_ONE_GPU_SUPPORTED = (2, 30)  # NCCL_MULTI_RANK_GPU_ENABLE


def prepare_nccl(plan: DevicePlan, layout: Layout) -> None:
    """This rank's environment for NCCL; nothing but its error handling where none is shared."""
    # A device fault must not end the process from NCCL's own thread: the rank reports it.
    for name, value in (
        ("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0"),
        ("TORCH_NCCL_ENABLE_MONITORING", "0"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "0"),
    ):
        os.environ.setdefault(name, value)
    remember_collectives()
    if plan.ranks_per_gpu(layout.local_world_size) <= 1:
        return
    if nccl_version() >= _ONE_GPU_SUPPORTED:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        return
    os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-ppharness-{layout.rank}"
    os.environ["NCCL_IB_DISABLE"] = "1"
    if layout.world_size == layout.local_world_size:
        os.environ["NCCL_SOCKET_IFNAME"] = "lo"


def nccl_version() -> tuple[int, ...]:
    """Of the NCCL that this torch uses; () without one."""
    try:
        return tuple(torch.cuda.nccl.version())
    except (AttributeError, RuntimeError):
        return ()


def through_host(plan: DevicePlan, reason: str) -> DevicePlan:
    """The plan with gloo in NCCL's place, saying why."""
    note = (
        f"NCCL could not share GPUs between ranks ({reason}); "
        "CUDA tensors are copied through the host over gloo"
    )
    return replace(plan, through_host=True, note=note)


def warm_up(
    pipeline: list[int], hidden: dist.ProcessGroup, relay: dist.ProcessGroup, device: torch.device
) -> str:
    """Makes the communicators of one pipeline before the first step; "" or what went wrong."""
    place, last = pipeline.index(dist.get_rank()), pipeline[-1]
    probe = torch.full((1,), place, device=device)
    try:
        if place > 0:
            came = torch.empty_like(probe)
            _wait(dist.irecv(came, pipeline[place - 1], hidden))
        if place < len(pipeline) - 1:
            _wait(dist.isend(probe, pipeline[place + 1], hidden))
        told = probe.clone()
        if len(pipeline) > 1:
            dist.broadcast(told, last, relay)
        if (place > 0 and int(came) != place - 1) or int(told) != len(pipeline) - 1:
            return "the data arrived wrong"
    except RuntimeError as error:
        return first_line(error)
    return ""


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


def abort(holder: Any, plan: DevicePlan) -> None:
    """Ends the transfers of a group that will never be matched, on the device too."""
    group = getattr(holder, "group", holder)
    if group is None or plan.backend != "nccl" or not isinstance(group, dist.ProcessGroup):
        return
    with contextlib.suppress(RuntimeError, AttributeError, ValueError):
        group._get_backend(torch.device("cuda")).abort()


def first_line(error: BaseException) -> str:
    """What an error says that has pages to say."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    duplicate = [line for line in lines if "Duplicate GPU" in line]
    return (duplicate or lines or [type(error).__name__])[0]


class HostCopy:
    """A transfer of a CUDA tensor by way of a host one; has a work's `wait`."""

    def __init__(self, work: Any, host: torch.Tensor, into: torch.Tensor | None):
        self._work, self._host, self._into = work, host, into

    def wait(self, timeout: Any = None) -> bool:
        if self._work is not None:
            self._work.wait(timeout) if timeout is not None else self._work.wait()
            self._work = None
            if self._into is not None:
                self._into.copy_(self._host)
        return True


def isend(tensor: torch.Tensor, to: int, group: Any, by_host: bool) -> Any:
    """As ``dist.isend``."""
    if not by_host:
        return dist.isend(tensor, to, group)
    host = tensor.cpu()
    return HostCopy(dist.isend(host, to, group), host, None)


def irecv(tensor: torch.Tensor, source: int, group: Any, by_host: bool) -> Any:
    """As ``dist.irecv``."""
    if not by_host:
        return dist.irecv(tensor, source, group)
    host = torch.empty(tensor.shape, dtype=tensor.dtype)
    return HostCopy(dist.irecv(host, source, group), host, tensor)


def broadcast(tensor: torch.Tensor, source: int, group: Any, by_host: bool) -> Any:
    """As ``dist.broadcast`` with ``async_op``."""
    if not by_host:
        return dist.broadcast(tensor, source, group, async_op=True)
    own = source == dist.get_rank()
    host = tensor.cpu() if own else torch.empty(tensor.shape, dtype=tensor.dtype)
    work = dist.broadcast(host, source, group, async_op=True)
    return HostCopy(work, host, None if own else tensor)
