"""Relays that each forget one thing between streams; right on a CPU, and mostly on a GPU too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ppharness.targets import BuiltinMambaState, BuiltinTarget, BuiltinTokenRelay
from ppharness.targets.side_stream import Arrival, SideStream


class NoWaitStream(SideStream):
    """The side stream does not wait for what the main one computes."""

    @contextmanager
    def after_main(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield


class NoRecordStream(SideStream):
    """The allocator is not told that the side stream reads."""

    def keep(self, *tensors: torch.Tensor) -> None:
        pass


class NoEvent(SideStream):
    """Nothing marks the point where the data is there."""

    def arrival(self, pending: Sequence[object]) -> Arrival:
        arrival = super().arrival(pending)  # type: ignore[arg-type]
        return arrival if self._stream is None else Arrival((), None)


def _target(side: type[SideStream]) -> type[BuiltinTarget]:
    class Relay(BuiltinTokenRelay):
        def __init__(self, config, channel):
            super().__init__(config, channel)
            self.side = side(config.device)

    class Target(BuiltinTarget):
        name = side.__name__
        token_relay_class = Relay

    return Target


ForgetsWaitStream = _target(NoWaitStream)
ForgetsRecordStream = _target(NoRecordStream)
ForgetsEvent = _target(NoEvent)


class _BeforeBuffer(BuiltinMambaState):
    """Stores at a negative offset, where a row is filtered out."""

    def postprocess_state(self, idx_mapping, num_sampled, num_computed_tokens=None):
        super().postprocess_state(idx_mapping, num_sampled, num_computed_tokens)
        outer = self.num_accepted_tokens
        storage = torch.as_strided(outer, (1,), (1,), max(outer.storage_offset() - 1, 0))
        storage.fill_(1)


class StoresBeforeBuffer(BuiltinTarget):
    """Overwrites the element just before the buffer."""

    name = "stores-before-buffer"
    mamba_state_class = _BeforeBuffer


class _Faulty(BuiltinMambaState):
    """In its third call a kernel fails on the device."""

    calls = 0
    on_last_rank = False

    def postprocess_state(self, idx_mapping, num_sampled, num_computed_tokens=None):
        super().postprocess_state(idx_mapping, num_sampled, num_computed_tokens)
        self.calls += 1
        place = self.config.pp_size - 1 if self.on_last_rank else 0
        if self.calls == 3 and self.config.pp_rank == place:
            torch._assert_async(torch.zeros(1, dtype=torch.bool, device=self.config.device))


class DeviceFault(BuiltinTarget):
    """A device-side assertion on the first stage."""

    name = "device-fault"
    mamba_state_class = _Faulty


class _FaultyLast(_Faulty):
    on_last_rank = True


class DeviceFaultOnLastStage(BuiltinTarget):
    """The same on the last one, which holds hidden states that NCCL's stream wrote."""

    name = "device-fault-on-last-stage"
    mamba_state_class = _FaultyLast
