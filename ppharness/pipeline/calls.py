"""A scenario of direct calls: `postprocess_state` on every rank, nothing around it."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ..findings import Finding
from ..oracle.buffers import expected_calls
from ..scenario.model import Scenario
from ..targets.interface import Target, TargetConfig, TargetSkip
from ..world.device_fault import is_device_fault
from ..world.world import World
from .batch import mapping_dtype_of
from .buffer_guard import BufferGuard
from .checks import CANARY, NUM_CANARIES, CheckList
from .faults import Faults
from .step_tensors import to_device
from .target_calls import TargetCalls


class CallsRunner:
    """Runs the calls of one scenario on one rank; step N is call N."""

    def __init__(
        self,
        scenario: Scenario,
        target: Target,
        world: World,
        findings: list[Finding],
        faults: Faults,
    ):
        self.scenario, self.world = scenario, world
        self.checks = CheckList(world.rank, world.label, findings)
        self.calls = TargetCalls(world, self.checks, faults)
        self.steps_run = 0
        self.skip_reason: str | None = None
        self.initial = 1 if scenario.initial is None else scenario.initial
        self.mapping_dtype = mapping_dtype_of(scenario, target)
        config = TargetConfig.for_scenario(scenario, world, self.mapping_dtype, world.pp_size, None)
        world.at(None, "make the target")
        try:
            self.state = target.make_mamba_state(config)
            self.guard = BufferGuard(self.state, max_num_reqs=scenario.max_num_reqs, poison=False)
            self.guard.buffer.fill_(self.initial)
            self.calls.look = self.guard.look
        except TargetSkip as skip:
            self.skip_reason = str(skip)
        except Exception as error:
            self.calls.fail(None, None, error)

    @property
    def complete(self) -> bool:
        """Whether every call was made."""
        return self.steps_run == len(self.scenario.calls)

    @property
    def final_buffer(self) -> list[int] | None:
        """``[max_num_reqs]`` as the calls left it."""
        return self.guard.final() if self.steps_run and not self.world.device_lost else None

    def run(self) -> None:
        """All calls; ends early when any rank's target raised."""
        self.world.start_scenario()
        if self.world.agree(self.calls.failed or self.skip_reason is not None).stop:
            return
        calls = [(call.idx_mapping, call.num_sampled) for call in self.scenario.calls]
        expected = expected_calls(self.initial, self.scenario.max_num_reqs, calls)
        before = np.full(self.scenario.max_num_reqs, self.initial, dtype=np.int64)
        for number, ((idx_mapping, num_sampled), want) in enumerate(
            zip(calls, expected, strict=True)
        ):
            self.world.start_step(number)
            judge = partial(
                self._judge, number=number, want=want, before=before,
                touched={slot for slot in idx_mapping if slot >= 0},
            )  # fmt: skip
            try:
                self._call(number, idx_mapping, num_sampled)
                self.calls.end_of_step(number)
                if not self.calls.failed:
                    self.checks.record(self.guard.snapshot(), judge)
            except RuntimeError as error:
                if not is_device_fault(error):
                    raise
                self.calls.fail("postprocess_state", number, error)
            before = want.astype(np.int64)
            self.steps_run += 1
            if self.world.agree(self.calls.failed).stop:
                break
        if not self.world.device_lost:
            self.calls.judge(self.steps_run - 1)
        self.calls.end_of_scenario(self.steps_run - 1)

    def _call(
        self, number: int, idx_mapping: tuple[int, ...], num_sampled: int | tuple[int, ...]
    ) -> None:
        device = self.world.device
        mapping = to_device(torch.tensor(idx_mapping, dtype=self.mapping_dtype), device)
        counts: int | torch.Tensor
        if isinstance(num_sampled, int):
            counts = num_sampled
        else:
            counts = to_device(torch.tensor(num_sampled, dtype=torch.int32), device)
        self.calls.state("postprocess_state", number, self.state.postprocess_state, mapping, counts)

    def _judge(
        self,
        snapshot: np.ndarray,
        number: int,
        want: np.ndarray,
        touched: set[int],
        before: np.ndarray,
    ) -> None:
        """Compares one snapshot with canaries around it with the expected buffer."""
        size = len(want)
        self.checks.num_checks += size
        full = np.full(len(snapshot), CANARY, dtype=np.int64)
        full[NUM_CANARIES : NUM_CANARIES + size] = want
        for place in np.flatnonzero(snapshot != full):
            slot, actual = int(place) - NUM_CANARIES, int(snapshot[place])
            if 0 <= slot < size and slot in touched:
                kind, text = "mismatch", f"slot {slot}: expected {full[place]}, got {actual}"
            elif 0 <= slot < size:
                kind = "stray_write"
                text = (
                    f"slot {slot} is in no row of the mapping: it held {before[slot]}, now {actual}"
                )
            else:
                kind = "stray_write"
                text = f"memory just outside the buffer, at slot {slot}, was written: {actual}"
            self.checks.add(
                kind, number, "postprocess_state", f"call {number}: {text}",
                slot=slot, expected=int(full[place]), actual=actual,
            )  # fmt: skip
