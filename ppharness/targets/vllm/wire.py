"""The release's broadcasts over the harness's channel.

A release's `pp_utils` calls `torch.distributed.broadcast` on a group that it got from
`get_pp_group()`.  Both names are replaced inside that one module: the harness must see
what each rank posts, and give every wait a deadline.  `torch.distributed` itself is
left alone, since the channel calls it.

A blocking broadcast means "enqueued" on CUDA and "arrived" on gloo.  The release counts
on the former: its receive returns at once, and the data is used `pp_size` steps later.
So on a CPU the routed call only posts, and the relay waits where the data is used.  On
CUDA the current stream, which is the release's side stream, waits at once, as it would
after a blocking call, and the event that the release records next covers it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..interface import PendingBroadcast, RelayChannel, TargetConfig
from .errors import TargetError

_LABELS = ("sampled tokens", "counts", "draft tokens")
DRAFTS = _LABELS.index("draft tokens")


class WireEnd:
    """One rank's end: what `get_pp_group()` is to the release while this end is in use."""

    def __init__(self, config: TargetConfig, channel: RelayChannel):
        self.channel = channel
        self.is_first_rank = config.pp_rank == 0
        self.is_last_rank = config.is_last_rank
        self.world_size = config.pp_size
        self.rank_in_group = config.pp_rank
        self.last_rank = channel.last_rank  # global rank, as in vLLM
        self.device_group = channel.group
        self.posted: list[PendingBroadcast] = []  # on a CPU: not waited for yet
        self.next_label = 0

    def make_sibling_device_group(self, *args: Any, **kwargs: Any) -> Any:
        return self.channel.group

    def post(self, tensor: torch.Tensor, src: int | None) -> PendingBroadcast:
        if src != self.last_rank:
            raise RuntimeError(
                f"a broadcast from rank {src}: the relay's source is rank {self.last_rank}"
            )
        number, self.next_label = self.next_label, self.next_label + 1
        what = _LABELS[number] if number < len(_LABELS) else f"broadcast {number + 1} of the step"
        pending = self.channel.broadcast(tensor, what)
        if tensor.is_cuda:
            pending.wait()
        else:
            self.posted.append(pending)
        return pending

    def take_posted(self) -> list[PendingBroadcast]:
        posted, self.posted = self.posted, []
        return posted


class Wire:
    """The replaced names of one `pp_utils` module; they act for the end in use."""

    def __init__(self, module: Any):
        self._end: WireEnd | None = None
        distributed = _Replaced(torch.distributed, broadcast=self._broadcast)
        replaced: dict[int, Any] = {
            id(torch): _Replaced(torch, distributed=distributed),
            id(torch.distributed): distributed,
            id(torch.distributed.broadcast): self._broadcast,
        }
        for name, value in list(vars(module).items()):
            if id(value) in replaced:
                setattr(module, name, replaced[id(value)])
        if not hasattr(module, "get_pp_group"):
            raise TargetError(f"{module.__name__} has no name get_pp_group to replace")
        module.get_pp_group = self._get_pp_group

    @contextmanager
    def over(self, end: WireEnd, *, first_label: int = 0) -> Iterator[None]:
        """Within it, the release talks through `end`."""
        self._end, end.next_label = end, first_label
        try:
            yield
        finally:
            self._end = None

    def _get_pp_group(self) -> WireEnd:
        if self._end is None:
            raise RuntimeError("get_pp_group() was called outside a step of the harness")
        return self._end

    def _broadcast(
        self,
        tensor: torch.Tensor,
        src: int | None = None,
        group: Any = None,
        async_op: bool = False,
    ) -> PendingBroadcast | None:
        if self._end is None:
            raise RuntimeError("a broadcast was posted outside a step of the harness")
        pending = self._end.post(tensor, src)
        return pending if async_op else None


class _Replaced:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **names: Any):
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
