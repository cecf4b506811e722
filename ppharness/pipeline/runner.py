"""One rank's life in one scenario, step by step.

The order within a step is that of vLLM's Model Runner V2 under pipeline parallelism.
A rank whose target raised keeps up its part of the communication until all ranks
agree, at the end of that step, to end the scenario.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from ..findings import ExceptionInfo, Finding, Frame, Phase
from ..oracle.buffers import BufferOracle, Expectation, needs_sample
from ..oracle.reference import SequentialReference
from ..scenario.model import Scenario
from ..scenario.schedule import Step, build_schedule, relay_depth
from ..targets.interface import InputBatch, SampledOutputs, Target, TargetConfig, TargetSkip
from ..world.world import World
from .batch import StepTensors, make_input_batch, make_step_tensors, to_device
from .buffer_guard import BufferGuard
from .checks import CheckList
from .judge import BufferJudge
from .model import StageModel, make_recurrent_states
from .tokens import TokenJudge

T = TypeVar("T")
_HIDDEN_WIDTH = 4  # request number, position, stages passed, value
DTYPES = {"int32": torch.int32, "int64": torch.int64}


class RankRunner:
    """Drives one target through one scenario on one rank."""

    def __init__(
        self, scenario: Scenario, target: Target, world: World, *, seed: int, judge_each_step: bool
    ):
        self.scenario = scenario
        self.world = world
        self.judge_each_step = judge_each_step
        self.schedule = build_schedule(scenario, world.pp_size)
        self.depth = relay_depth(scenario, world.pp_size)
        self.is_last = world.pp_rank == world.pp_size - 1
        self.checks = CheckList(world.rank, world.label)
        self.failed: BaseException | None = None
        self.relay_failed = False
        self.steps_run = 0
        pinned = scenario.idx_mapping_dtype
        self.mapping_dtype = DTYPES[pinned] if pinned else target.idx_mapping_dtype()
        states = make_recurrent_states(scenario, world.device)
        self.model = StageModel(scenario, world.pp_rank, states)
        self.oracle = BufferOracle(
            scenario, self.schedule, pp_size=world.pp_size, pp_rank=world.pp_rank
        )
        prompts = [r.prompt_tokens for r in scenario.requests]
        self.reference = SequentialReference(prompts, num_stages=world.pp_size, seed=seed)
        self.tokens = TokenJudge(self.checks, self.reference)
        self.buffers = BufferJudge(
            self.checks, max_accepted=scenario.num_speculative_tokens + 1, exact=target.exact
        )
        self.config = TargetConfig(
            max_num_reqs=scenario.max_num_reqs,
            max_num_batched_tokens=scenario.max_num_batched_tokens,
            max_model_len=scenario.max_model_len,
            num_speculative_tokens=scenario.num_speculative_tokens,
            mamba_cache_mode=scenario.mamba_cache_mode,
            mamba_block_size=scenario.mamba_block_size,
            pp_size=world.pp_size,
            pp_rank=world.pp_rank,
            relay_depth=self.depth,
            device=world.device,
            tp_size=world.tp_size,
            tp_rank=world.tp_rank,
            idx_mapping_dtype=self.mapping_dtype,
            recurrent=states if scenario.mamba_cache_mode == "align" else None,
        )
        self.skip_reason: str | None = None
        self.world.at(None, "make the target")
        try:
            self._make_parts(target)
        except TargetSkip as skip:
            self.skip_reason = str(skip)
        except Exception as error:
            self._fail(None, None, error)

    def _make_parts(self, target: Target) -> None:
        self.state = target.make_mamba_state(self.config)
        self.relay = target.make_token_relay(self.config, self.world.relay_channel)
        self.slots = target.make_request_slots(self.config)
        self.guard = BufferGuard(self.state, max_num_reqs=self.scenario.max_num_reqs)

    def run(self) -> None:
        """All steps; ends early when any rank's target raised, or on an interrupt."""
        if self.world.agree(self.failed is not None or self.skip_reason is not None):
            return
        for step in self.schedule:
            self.world.relay_channel.start_step(step.index)
            self._run_step(step, iter(self.oracle.step(step)))
            self.steps_run += 1
            if self.judge_each_step:
                self._judge()
            if self.world.agree(self.failed is not None):
                break
        self.world.relay_channel.finish()
        self._judge()

    @property
    def final_buffer(self) -> list[int] | None:
        """``[max_num_reqs]`` each slot as its last owner left it."""
        return self.guard.final() if self.steps_run else None

    def _run_step(self, step: Step, expected: Iterator[Expectation]) -> None:
        self._apply_sampled(step)
        self._snapshot(next(expected))
        self._free(step)
        self._snapshot(next(expected))
        self._add(step)
        self._snapshot(next(expected))
        if not step.rows:
            return
        batch, tensors, num_computed = self._build_batch(step)
        self._call(
            "preprocess_state", step, self.state.preprocess_state,
            batch, self.slots.num_computed_tokens,
        )  # fmt: skip
        self._snapshot(next(expected))
        hidden = self._forward(step, batch, tensors, num_computed)
        if self.is_last:
            self._sample(step, batch, tensors, hidden)
        else:
            self._receive(step, batch)
        self._snapshot(next(expected))

    def _apply_sampled(self, step: Step) -> None:
        """What the last rank sampled `depth` steps ago reaches this one."""
        if self.is_last:
            return
        outputs = self._relay("apply_sampled", step, self.relay.get_prev_sampled_outputs)
        if outputs is None:
            return
        source = self.schedule[step.index - self.depth] if step.index >= self.depth else step
        self._record_applied(outputs, source, step)
        self._call("apply_sampled", step, self.slots.apply_sampled, outputs, None)
        self._call(
            "apply_sampled", step, self.state.postprocess_state,
            outputs.idx_mapping, outputs.num_sampled, self.slots.num_computed_tokens,
        )  # fmt: skip

    def _free(self, step: Step) -> None:
        for freed in step.freed:
            self.guard.before_remove(freed.slot)
            self._call("free", step, self.state.remove_request, freed.slot)
            self._call("free", step, self.slots.remove_request, freed.slot, freed.req_id)
            self.guard.after_remove(freed.slot)
            self._relay("free", step, self.relay.on_req_idx_freed, freed.slot)

    def _add(self, step: Step) -> None:
        for added in step.added:
            token_ids = self.reference.token_ids(added.req_num, 0, added.prefill_len)
            self.guard.before_add(added.slot)
            self._call(
                "add_request", step, self.slots.add_request,
                added.slot, added.req_id, added.prompt_len, token_ids,
                added.num_computed_tokens, added.max_tokens,
            )  # fmt: skip
            self._call(
                "add_request", step, self.state.add_request,
                added.slot, added.num_computed_tokens,
            )  # fmt: skip

    def _build_batch(self, step: Step) -> tuple[InputBatch, StepTensors, torch.Tensor]:
        """The batch as this rank sees it; rows aborted in flight are at -1 but on the last."""
        self.world.at(step.index, "build the batch")
        slots = np.array(
            [-1 if r.filtered and not self.is_last else r.slot for r in step.rows], dtype=np.int64
        )
        tensors = make_step_tensors(step, slots, self._input_ids(step), self.world.device)
        own = self.slots.num_computed_tokens[tensors.slot.clamp(min=0)]
        num_computed = torch.where(tensors.slot < 0, tensors.num_computed, own)
        host = np.array([r.num_computed_tokens_host for r in step.rows], dtype=np.int32)
        batch = make_input_batch(step, slots, host, self.mapping_dtype, tensors, num_computed)
        return batch, tensors, num_computed

    def _input_ids(self, step: Step) -> np.ndarray:
        """``[num_tokens]`` prompt tokens and drafts; only the first stage embeds them."""
        ids: list[int] = []
        for row in step.rows:
            if self.world.pp_rank and not (self.is_last and row.num_draft_tokens):
                ids.extend([0] * row.num_scheduled_tokens)
                continue
            start, stop = (
                row.num_computed_tokens,
                row.num_computed_tokens + row.num_scheduled_tokens,
            )
            tokens = list(self.reference.token_ids(row.req_num, start, stop))
            if row.num_draft_tokens:
                for place in range(row.num_sampled, row.num_scheduled_tokens):
                    tokens[place] ^= 1  # a draft that will be refused
            ids.extend(tokens)
        return np.array(ids, dtype=np.int64)

    def _forward(
        self, step: Step, batch: InputBatch, tensors: StepTensors, num_computed: torch.Tensor
    ) -> torch.Tensor:
        """This stage's layers; hidden states come from the stage before and go to the next."""
        world, stage = self.world, self.world.pp_rank
        world.at(step.index, "forward")
        marks = torch.stack(
            [tensors.req_num, batch.positions, torch.full_like(batch.positions, stage)], dim=1
        )
        if stage == 0:
            ids = tensors.input_ids
            last = self.slots.last_sampled_tokens[tensors.slot.clamp(min=0)].view(-1)
            ids[tensors.start] = torch.where(tensors.decodes > 0, last, ids[tensors.start])
            self.checks.record(ids, partial(self.tokens.inputs, step=step))
            x = self.model.embed(ids)
        else:
            hidden = torch.empty(
                step.num_tokens, _HIDDEN_WIDTH, dtype=torch.int64, device=world.device
            )
            world.recv_hidden(hidden)
            x = hidden[:, 3]
            self.checks.record(
                hidden[:, :3], partial(self.tokens.hidden, step=step, stage=stage, filtered=True)
            )
        self.checks.record(
            marks, partial(self.tokens.hidden, step=step, stage=stage, filtered=not self.is_last)
        )
        accepted = self.guard.buffer[tensors.slot.clamp(min=0)]
        x = self.model.forward(x, tensors, accepted, num_computed)
        if not self.is_last:
            marks[:, 2] += 1
            world.send_hidden(torch.cat([marks, x[:, None]], dim=1))
        return x

    def _sample(
        self, step: Step, batch: InputBatch, tensors: StepTensors, hidden: torch.Tensor
    ) -> None:
        """The last rank: sample, broadcast, then take its own result in at once."""
        sampled = self.model.sample(hidden, tensors)
        self.checks.record(sampled, partial(self.tokens.sampled, step=step))
        num_sampled = tensors.num_sampled.to(torch.int32)
        num_rejected = tensors.num_rejected.to(torch.int32)
        if self.world.pp_size > 1:
            self._relay(
                "relay", step, self.relay.broadcast, sampled, num_sampled, num_rejected, batch
            )
            self._fulfil(step)
        outputs = SampledOutputs(sampled, num_sampled, num_rejected, batch.idx_mapping)
        self._call(
            "postprocess_state", step, self.slots.apply_sampled, outputs, batch.query_start_loc
        )
        self._call(
            "postprocess_state", step, self.state.postprocess_state,
            batch.idx_mapping, num_sampled, self.slots.num_computed_tokens,
        )  # fmt: skip
        if hasattr(self.relay, "broadcast_drafts") and self.config.num_speculative_tokens:
            drafts = to_device(self._next_drafts(step), self.world.device)
            self._relay("relay", step, self.relay.broadcast_drafts, drafts, batch)

    def _receive(self, step: Step, batch: InputBatch) -> None:
        """Every other rank: post the receives, move on, neutral counts for prefill chunks."""
        all_decode_next = self._relay("relay", step, self.relay.receive, batch)
        self._fulfil(step)
        self._call("postprocess_state", step, self.slots.advance, batch)
        if not all_decode_next:
            self._call(
                "postprocess_state", step, self.state.postprocess_state, batch.idx_mapping, 0
            )

    def _next_drafts(self, step: Step) -> torch.Tensor:
        """``[num_reqs, K]`` int64 the drafter's proposals for each row's next step."""
        k = self.config.num_speculative_tokens
        drafts = torch.zeros(len(step.rows), k, dtype=torch.int64)
        for number, row in enumerate(step.rows):
            if row.num_sampled:
                end = row.num_computed_tokens + row.num_scheduled_tokens - row.num_rejected + 1
                drafts[number] = torch.tensor(self.reference.token_ids(row.req_num, end, end + k))
        return drafts

    def _fulfil(self, step: Step) -> None:
        """Posts what a failed relay left out, so that no other rank waits for it."""
        if not self.relay_failed or not any(needs_sample(r) for r in step.rows):
            return
        width = self.config.num_speculative_tokens + 1 if step.num_draft_tokens else 1
        shapes = [((len(step.rows), width), torch.int64), ((2, len(step.rows)), torch.int32)]
        channel = self.world.relay_channel
        for shape, dtype in shapes[channel.num_posted :]:
            channel.broadcast(torch.zeros(shape, dtype=dtype, device=self.world.device), "stand-in")

    def _record_applied(self, outputs: SampledOutputs, source: Step, now: Step) -> None:
        num_reqs, _ = outputs.sampled_tokens.shape
        if num_reqs != len(source.rows):
            self.checks.add(
                "divergence", now.index, "apply_sampled",
                f"{num_reqs} rows were applied as step {source.index}'s sample, "
                f"which had {len(source.rows)}",
                expected=len(source.rows), actual=num_reqs,
            )  # fmt: skip
            return
        columns = [outputs.idx_mapping, outputs.num_sampled, outputs.num_rejected]
        packed = torch.cat(
            [torch.stack([c.to(torch.int64) for c in columns], dim=1), outputs.sampled_tokens],
            dim=1,
        )
        self.checks.record(
            packed,
            partial(self.tokens.applied, source=source, now=now),
        )

    def _snapshot(self, expected: Expectation) -> None:
        if self.failed is None:
            self.checks.record(
                self.guard.snapshot(), partial(self.buffers.judge, expected=expected)
            )

    def _judge(self) -> None:
        self.checks.judge()

    def _call(self, phase: Phase, step: Step, function: Callable[..., T], *args: Any) -> T | None:
        """A call into the state module or the slots; none after the target raised."""
        if self.failed is not None:
            return None
        self.world.at(step.index, phase)
        try:
            return function(*args)
        except Exception as error:
            self._fail(phase, step, error)
            return None

    def _relay(self, phase: Phase, step: Step, function: Callable[..., T], *args: Any) -> T | None:
        """A call into the relay, which goes on while the state module has failed."""
        if self.relay_failed:
            return None
        self.world.at(step.index, phase)
        try:
            return function(*args)
        except self.world.transport_errors:
            raise
        except Exception as error:
            self.relay_failed = True
            self._fail(phase, step, error)
            return None

    def _fail(self, phase: Phase | None, step: Step | None, error: BaseException) -> None:
        if self.failed is None:
            self.failed = error
            self.checks.findings.append(
                Finding(
                    kind="exception",
                    rank=self.world.rank,
                    label=self.world.label,
                    step=step.index if step is not None else None,
                    phase=phase,
                    message=f"{type(error).__name__}: {error}",
                    exception=describe_exception(error),
                )
            )


def describe_exception(error: BaseException) -> ExceptionInfo:
    """Type, message and frames of the target's part of a traceback, outermost first."""
    here = str(Path(__file__).resolve())
    frames = [
        Frame(f.filename, f.lineno or 0, f.name)
        for f in traceback.extract_tb(error.__traceback__)
        if f.filename != here
    ]
    return ExceptionInfo(type(error).__name__, str(error), frames[-30:])
