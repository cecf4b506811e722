"""A scenario of direct calls: `postprocess_state` on every rank, nothing around it."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ..findings import Finding
from ..oracle.buffers import expected_calls
from ..scenario.model import Scenario
from ..targets.interface import Target, TargetConfig
from ..world.world import World
from .batch import to_device
from .buffer_guard import BufferGuard
from .checks import CANARY, NUM_CANARIES, CheckList
from .runner import DTYPES, describe_exception


class CallsRunner:
    """Runs the calls of one scenario on one rank; step N is call N."""

    def __init__(self, scenario: Scenario, target: Target, world: World):
        self.scenario, self.world = scenario, world
        self.checks = CheckList(world.rank, world.label)
        self.steps_run = 0
        self.skip_reason: str | None = None
        self.initial = 1 if scenario.initial is None else scenario.initial
        pinned = scenario.idx_mapping_dtype
        self.mapping_dtype = DTYPES[pinned] if pinned else target.idx_mapping_dtype()
        self.state = target.make_mamba_state(
            TargetConfig(
                max_num_reqs=scenario.max_num_reqs,
                max_num_batched_tokens=scenario.max_num_batched_tokens,
                max_model_len=scenario.max_model_len,
                num_speculative_tokens=scenario.num_speculative_tokens,
                mamba_cache_mode="none",
                mamba_block_size=scenario.mamba_block_size,
                pp_size=world.pp_size,
                pp_rank=world.pp_rank,
                relay_depth=world.pp_size,
                device=world.device,
                tp_size=world.tp_size,
                tp_rank=world.tp_rank,
                idx_mapping_dtype=self.mapping_dtype,
            )
        )
        self.guard = BufferGuard(self.state, max_num_reqs=scenario.max_num_reqs, poison=False)
        self.guard.buffer.fill_(self.initial)

    @property
    def final_buffer(self) -> list[int]:
        """``[max_num_reqs]`` as the calls left it."""
        return self.guard.final()

    def run(self) -> None:
        """All calls; ends early when any rank's target raised."""
        calls = [(call.idx_mapping, call.num_sampled) for call in self.scenario.calls]
        expected = expected_calls(self.initial, self.scenario.max_num_reqs, calls)
        before = np.full(self.scenario.max_num_reqs, self.initial, dtype=np.int64)
        for number, ((idx_mapping, num_sampled), want) in enumerate(
            zip(calls, expected, strict=True)
        ):
            failed = not self._call(number, idx_mapping, num_sampled)
            if not failed:
                touched = {slot for slot in idx_mapping if slot >= 0}
                self.checks.record(
                    self.guard.snapshot(),
                    partial(self._judge, number=number, want=want, touched=touched, before=before),
                )
            before = want.astype(np.int64)
            self.steps_run += 1
            if self.world.agree(failed):
                break
        self.checks.judge()

    def _call(
        self, number: int, idx_mapping: tuple[int, ...], num_sampled: int | tuple[int, ...]
    ) -> bool:
        device = self.world.device
        self.world.at(number, "postprocess_state")
        mapping = to_device(torch.tensor(idx_mapping, dtype=self.mapping_dtype), device)
        counts: int | torch.Tensor = 0
        if isinstance(num_sampled, int):
            counts = num_sampled
        else:
            counts = to_device(torch.tensor(num_sampled, dtype=torch.int32), device)
        try:
            self.state.postprocess_state(mapping, counts)
        except Exception as error:
            self.checks.findings.append(
                Finding(
                    kind="exception",
                    rank=self.world.rank,
                    label=self.world.label,
                    step=number,
                    phase="postprocess_state",
                    message=f"{type(error).__name__}: {error}",
                    exception=describe_exception(error),
                )
            )
            return False
        return True

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
