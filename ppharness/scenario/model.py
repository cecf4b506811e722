"""A scenario: what is to happen, never what a target does with it.

``Scenario`` is valid in itself: whatever is built, from a file or in Python, has passed
the field limits (pydantic) and ``faults`` (what one field demands of another).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
Name = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$",
        max_length=80,
        description="lower-case letters, digits and single dashes, at most 80 characters",
    ),
]
ReqId = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9._:-]{1,64}$",
        description="a text of 1 to 64 letters, digits and '._:-'",
    ),
]
# Shown on terminals, so without control characters and changes of writing direction.
Text = Annotated[
    str,
    Field(
        pattern=r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f\x{202a}-\x{202e}\x{2066}-\x{2069}]*$",
        max_length=4000,
        description="a text of at most 4000 characters, none of them a control character",
    ),
]
NumSampled = Annotated[int, Field(ge=0, le=INT32_MAX)]
KeyPath = tuple[str | int, ...]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Request(_Strict):
    id: ReqId
    prompt_tokens: int = Field(ge=1, le=1_000_000)
    max_tokens: int = Field(ge=1, le=1_000_000)
    arrive_at: int = Field(default=0, ge=0, le=1_000_000)
    # drafts accepted by each verify step; repeats when it runs out. Empty: all of them.
    accept: tuple[int, ...] = ()


class Event(_Strict):
    """One of `abort` and `preempt`, at a step."""

    step: int = Field(ge=0, le=1_000_000)
    abort: ReqId | None = None
    preempt: ReqId | None = None
    in_flight: bool = False


class Call(_Strict):
    """A direct call of `postprocess_state`, the same on every rank."""

    idx_mapping: tuple[int, ...]  # [num_reqs] batch row -> slot, -1 = skip
    num_sampled: NumSampled | tuple[NumSampled, ...]  # one for all rows, or [num_reqs]


class Scenario(_Strict):
    """Raises ``pydantic.ValidationError`` (a ValueError) where it is not a valid scenario."""

    name: Name
    description: Text = ""
    source: Text | None = None
    pp_size: int | None = Field(default=None, ge=1, le=64)
    max_num_reqs: int = Field(default=8, ge=1, le=65_536)
    max_num_batched_tokens: int = Field(default=64, ge=1, le=1_048_576)
    max_model_len: int = Field(default=131_072, ge=2, le=2_097_152)
    num_speculative_tokens: int = Field(default=0, ge=0, le=64)
    schedule: Literal["async", "sync"] = "async"
    mamba_cache_mode: Literal["none", "align"] = "none"
    mamba_block_size: int = Field(default=16, ge=1, le=65_536)
    idx_mapping_dtype: Literal["int32", "int64"] | None = None  # None: the target's own
    requests: tuple[Request, ...] = ()
    events: tuple[Event, ...] = ()
    # only with calls, and then never None: 1 where the file does not say
    initial: int | None = Field(default=None, ge=INT32_MIN, le=INT32_MAX)
    calls: tuple[Call, ...] = ()
    file: str | None = Field(default=None, exclude=True)  # where it was read from

    @model_validator(mode="before")
    @classmethod
    def _fill_initial(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("calls") and data.get("initial") is None:
            return {**data, "initial": 1}
        return data

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Scenario:
        found = [str(f) for f in islice(faults(self.model_dump(exclude_unset=True)), 20)]
        if found:
            raise ValueError("; ".join(found))
        return self


def key_path(path: Iterable[str | int]) -> str:
    """``("requests", 1, "id")`` as ``requests[1].id``."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that ``name`` is most likely a slip of, if any is near."""
    # Bounded: a name as long as a file, or a file of names, would take difflib minutes.
    some = list(islice(names, 500))
    near = difflib.get_close_matches(name[:100], some, n=1, cutoff=0.6)
    near = near or difflib.get_close_matches(name[:100].lower(), some, n=1, cutoff=0.6)
    return near[0] if near else None


class Fault(NamedTuple):
    """A value that is right in itself and wrong beside the others."""

    path: KeyPath
    found: str
    allowed: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{key_path(self.path)}: " if self.path else ""
        return f"{where}found {self.found}, allowed {self.allowed}{self.hint}"


def faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong between the values of one scenario, given as plain data.

    Takes incomplete data too: a value of any type but its own (that is, one already known
    to be wrong) is passed over, and so is all that would depend on it.
    """
    requests, calls = data.get("requests", ()), data.get("calls", ())
    if requests and calls:
        yield Fault(("calls",), "both requests and calls", "one of them")
    elif not requests and not calls:
        yield Fault((), "neither requests nor calls", "one of them, with at least one entry")
    if isinstance(requests, tuple):
        yield from _request_faults(data, requests)
    events = data.get("events", ())
    if calls and events:
        yield Fault(("events",), "events beside calls", "events only with requests")
    elif isinstance(events, tuple) and isinstance(requests, tuple):
        yield from _event_faults(events, [_get(r, "id") for r in requests])
    if isinstance(calls, tuple):
        yield from _call_faults(data, calls)
        if not calls and isinstance(initial := data.get("initial"), int):
            yield Fault(("initial",), str(initial), "only with calls")


def _get(data: Any, key: str, default: Any = None) -> Any:
    return data.get(key, default) if isinstance(data, Mapping) else None


def _setting(data: Mapping[str, Any], key: str) -> Any:
    return data.get(key, Scenario.model_fields[key].default)


def _request_faults(data: Mapping[str, Any], requests: tuple[Any, ...]) -> Iterator[Fault]:
    max_model_len = _setting(data, "max_model_len")
    num_drafts = _setting(data, "num_speculative_tokens")
    first: dict[str, int] = {}
    for i, request in enumerate(requests):
        req_id = _get(request, "id")
        if isinstance(req_id, str) and first.setdefault(req_id, i) != i:
            allowed = f"an id of its own (requests[{first[req_id]}] has this one)"
            yield Fault(("requests", i, "id"), repr(req_id), allowed)
        prompt, output = _get(request, "prompt_tokens"), _get(request, "max_tokens")
        sizes = (prompt, output, max_model_len)
        if all(isinstance(n, int) for n in sizes) and prompt + output > max_model_len:
            yield Fault(
                ("requests", i, "prompt_tokens"),
                f"{prompt} + max_tokens {output} = {prompt + output}",
                f"at most max_model_len {max_model_len}",
                ": a request that can never fit",
            )
        accept = _get(request, "accept", ())
        if isinstance(accept, tuple) and isinstance(num_drafts, int):
            for j, n in enumerate(accept):
                if isinstance(n, int) and not 0 <= n <= num_drafts:
                    allowed = f"0 to {num_drafts} (num_speculative_tokens)"
                    yield Fault(("requests", i, "accept", j), str(n), allowed)


def _event_faults(events: tuple[Any, ...], req_ids: list[Any]) -> Iterator[Fault]:
    ids = [req_id for req_id in req_ids if isinstance(req_id, str)]
    known, all_known = set(ids), len(ids) == len(req_ids)
    for i, event in enumerate(events):
        if not isinstance(event, Mapping):
            continue
        given = [key for key in ("abort", "preempt") if event.get(key) is not None]
        if len(given) == 2:
            yield Fault(("events", i, "preempt"), "both abort and preempt", "one of them")
        elif not given:
            yield Fault(("events", i), "neither abort nor preempt", "one of them")
        elif given == ["preempt"] and event.get("in_flight") is True:
            yield Fault(("events", i, "in_flight"), "true with preempt", "true only with abort")
        for key in given:
            req_id = event[key]
            if isinstance(req_id, str) and all_known and ids and req_id not in known:
                near = nearest(req_id, ids)
                allowed = "the id of a request: " + listing(ids)
                hint = f"; did you mean {near!r}?" if near else ""
                yield Fault(("events", i, key), repr(req_id), allowed, hint)


def _call_faults(data: Mapping[str, Any], calls: tuple[Any, ...]) -> Iterator[Fault]:
    max_num_reqs = _setting(data, "max_num_reqs")
    for i, call in enumerate(calls):
        idx_mapping, num_sampled = _get(call, "idx_mapping"), _get(call, "num_sampled")
        if not isinstance(idx_mapping, tuple):
            continue
        seen: dict[int, int] = {}
        for j, slot in enumerate(idx_mapping):
            path = ("calls", i, "idx_mapping", j)
            if not isinstance(slot, int):
                continue
            if slot < -1 or (isinstance(max_num_reqs, int) and slot >= max_num_reqs):
                top = max_num_reqs - 1 if isinstance(max_num_reqs, int) else "max_num_reqs - 1"
                yield Fault(path, str(slot), f"-1 to {top}")
            elif slot >= 0 and seen.setdefault(slot, j) != j:
                yield Fault(path, f"slot {slot} again", "each slot once in a call")
        if isinstance(num_sampled, tuple) and len(num_sampled) != len(idx_mapping):
            allowed = f"{len(idx_mapping)}, one for each entry of idx_mapping, or one integer"
            yield Fault(("calls", i, "num_sampled"), f"a list of {len(num_sampled)}", allowed)


def listing(names: Iterable[str], limit: int = 20) -> str:
    """Names in one line, cut where they are many."""
    all_names = list(names)
    more = f" and {len(all_names) - limit} more" if len(all_names) > limit else ""
    return ", ".join(all_names[:limit]) + more
