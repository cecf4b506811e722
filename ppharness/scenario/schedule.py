"""From a scenario to the list of steps, the same on every rank.

A small scheduler in plain Python: token budget, chunked prefill, decode cadence,
drafts, length caps, aborts, preemption, slots.  It knows the outcome of every
step in advance (a scenario scripts what is accepted), and it also says what the
host of a real engine would believe at that moment, which is more optimistic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import Request, Scenario

MAX_STEPS = 200_000


class ScheduleError(ValueError):
    """A scenario of too many steps; `request` is the number of one that has not ended."""

    def __init__(self, text: str, request: int) -> None:
        super().__init__(text)
        self.request = request


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of one step."""

    req_id: str
    req_num: int  # index in the scenario's requests
    life: int  # 0, and one more after each preemption
    slot: int
    prompt_len: int
    prefill_len: int  # prompt, and after a preemption the outputs known by then
    max_seq_len: int  # prompt + max_tokens
    num_computed_tokens: int  # before the step
    num_computed_tokens_host: int  # the same as the scheduler believes: an upper bound
    num_scheduled_tokens: int
    num_draft_tokens: int
    num_sampled: int  # 0 for a non-final chunk, else 1 + accepted drafts
    num_rejected: int
    is_last: bool  # nothing of this life is scheduled after it
    filtered: bool = False  # aborted in flight: non-final ranks hold -1 for it

    @property
    def is_prefilling(self) -> bool:
        return self.num_computed_tokens < self.prefill_len

    @property
    def text(self) -> str:
        kind = "prefill" if self.is_prefilling else "verify" if self.num_draft_tokens else "decode"
        return f"{kind} {self.req_id}"


@dataclass(frozen=True, slots=True)
class Added:
    """A request that takes a slot."""

    req_id: str
    req_num: int
    life: int
    slot: int
    prompt_len: int
    prefill_len: int
    max_tokens: int
    num_computed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Freed:
    req_id: str
    slot: int
    life: int


@dataclass(frozen=True, slots=True)
class Step:
    """What every rank does in one step; `rows` may be empty."""

    index: int
    freed: tuple[Freed, ...]
    added: tuple[Added, ...]
    rows: tuple[Row, ...]

    @property
    def num_tokens(self) -> int:
        return sum(r.num_scheduled_tokens for r in self.rows)

    @property
    def num_draft_tokens(self) -> int:
        return sum(r.num_draft_tokens for r in self.rows)

    @property
    def text(self) -> str:
        return ", ".join(r.text for r in self.rows) or "."


@dataclass
class _Live:
    """A request inside the scheduler."""

    num: int
    request: Request
    life: int = 0
    slot: int = -1
    prefill_len: int = 0
    computed: int = 0
    host_extra: int = 0  # what the host's count is ahead
    outputs: int = 0  # tokens that came out, capped by max_tokens
    known_outputs: int = 0  # those that the host had seen before the last sampling step
    verify_steps: int = 0
    ready_at: int = 0  # first step that may run it again
    last_sampled_at: int = -1
    done_at: int | None = None  # step of its last row

    @property
    def prefilling(self) -> bool:
        return self.computed < self.prefill_len


def relay_depth(scenario: Scenario, pp_size: int) -> int:
    """Steps from a sample to the earliest step that uses it."""
    return pp_size if scenario.schedule == "async" else 1


def build_schedule(scenario: Scenario, pp_size: int) -> list[Step]:
    """All steps of a scenario's requests.

    Raises:
        ScheduleError: when it would take more than `MAX_STEPS` steps.
    """
    return _Scheduler(scenario, pp_size).run()


@dataclass
class _Scheduler:
    scenario: Scenario
    pp_size: int
    depth: int = 0
    free_slots: list[int] = field(default_factory=list)
    waiting: list[_Live] = field(default_factory=list)
    running: list[_Live] = field(default_factory=list)

    def run(self) -> list[Step]:
        self.depth = relay_depth(self.scenario, self.pp_size)
        self.free_slots = list(range(self.scenario.max_num_reqs))  # taken from the end
        arriving = sorted(
            (
                _Live(n, r, prefill_len=r.prompt_tokens)
                for n, r in enumerate(self.scenario.requests)
            ),
            key=lambda live: (live.request.arrive_at, live.num),
        )
        steps: list[Step] = []
        while arriving or self.waiting or self.running:
            index = len(steps)
            if index >= MAX_STEPS:
                stuck = (self.running + self.waiting + arriving)[0]
                raise ScheduleError(
                    f"scenario {self.scenario.name}: request {stuck.request.id!r} is not finished "
                    f"after {MAX_STEPS} steps; allowed: scenarios of at most that many",
                    stuck.num,
                )
            freed = self._free(index, arriving)
            while arriving and arriving[0].request.arrive_at <= index:
                self.waiting.append(arriving.pop(0))
            added, rows = self._schedule(index)
            steps.append(Step(index, tuple(freed), tuple(added), tuple(rows)))
        return steps

    def _free(self, index: int, arriving: list[_Live]) -> list[Freed]:
        """Finished, aborted and preempted requests give their slots back."""
        aborted = {e.abort for e in self.scenario.events if e.abort and _gone_at(e) == index}
        preempted = {e.preempt for e in self.scenario.events if e.preempt and e.step == index}
        for queue in (arriving, self.waiting):
            queue[:] = [live for live in queue if live.request.id not in aborted]
        freed: list[Freed] = []
        for live in sorted(self.running, key=lambda x: x.request.id):
            name = live.request.id
            finished = live.done_at is not None and index >= live.done_at + self.depth
            if finished or name in aborted or name in preempted:
                freed.append(Freed(name, live.slot, live.life))
                self.free_slots.append(live.slot)
                self.running.remove(live)
                if name in preempted and not finished and name not in aborted:
                    self.waiting.insert(0, self._preempt(live, index))
        return freed

    def _preempt(self, live: _Live, index: int) -> _Live:
        """A new life that recomputes; outputs still in flight are not known and are lost."""
        in_flight = live.last_sampled_at > index - self.depth
        known = live.known_outputs if in_flight else live.outputs
        return _Live(
            live.num,
            live.request,
            life=live.life + 1,
            prefill_len=live.request.prompt_tokens + known,
            outputs=known,
            known_outputs=known,
            verify_steps=live.verify_steps,
        )

    def _schedule(self, index: int) -> tuple[list[Added], list[Row]]:
        budget = self.scenario.max_num_batched_tokens
        dropped = {e.abort for e in self.scenario.events if e.in_flight and e.step == index}
        rows: list[Row] = []
        added: list[Added] = []
        for live in self.running:
            if budget and live.done_at is None and live.ready_at <= index:
                rows.append(self._row(live, index, budget, live.request.id in dropped))
                budget -= rows[-1].num_scheduled_tokens
        while self.waiting and budget and self.free_slots:
            live = self.waiting.pop(0)
            live.slot = self.free_slots.pop()
            self.running.append(live)
            request = live.request
            added.append(
                Added(
                    request.id, live.num, live.life, live.slot, request.prompt_tokens,
                    live.prefill_len, request.max_tokens,
                )
            )  # fmt: skip
            rows.append(self._row(live, index, budget, request.id in dropped))
            budget -= rows[-1].num_scheduled_tokens
        rows.sort(key=lambda r: r.is_prefilling)  # stable: decode rows first
        return added, rows

    def _row(self, live: _Live, index: int, budget: int, filtered: bool) -> Row:
        """Schedules one row and moves the request on."""
        scenario, request = self.scenario, live.request
        computed, host = live.computed, live.computed + live.host_extra
        drafts = num_sampled = num_rejected = 0
        if live.prefilling:
            scheduled = min(live.prefill_len - computed, budget)
            if computed + scheduled >= live.prefill_len:
                num_sampled = 1
        else:
            room = max(1, min(budget, scenario.max_model_len - host))
            scheduled = min(1 + scenario.num_speculative_tokens, room)
            drafts = scheduled - 1
            accept = request.accept or (drafts,)
            num_sampled = 1 + min(accept[live.verify_steps % len(accept)], drafts)
            num_rejected = drafts + 1 - num_sampled
            live.verify_steps += drafts > 0
        if num_sampled:
            live.known_outputs = live.outputs
            live.outputs = min(live.outputs + num_sampled, request.max_tokens)
            live.last_sampled_at = index
            live.ready_at = index + self.depth
            if live.outputs == request.max_tokens:
                live.done_at = index
        else:
            live.ready_at = index + 1
        live.computed += scheduled - num_rejected
        live.host_extra = num_rejected if scenario.schedule == "async" else 0
        return Row(
            req_id=request.id,
            req_num=live.num,
            life=live.life,
            slot=live.slot,
            prompt_len=request.prompt_tokens,
            prefill_len=live.prefill_len,
            max_seq_len=request.prompt_tokens + request.max_tokens,
            num_computed_tokens=computed,
            num_computed_tokens_host=host,
            num_scheduled_tokens=scheduled,
            num_draft_tokens=drafts,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
            is_last=live.done_at is not None,
            filtered=filtered,
        )


def _gone_at(event: object) -> int:
    """The step whose frees include an aborted request."""
    step: int = event.step  # type: ignore[attr-defined]
    return step + 1 if event.in_flight else step  # type: ignore[attr-defined]
