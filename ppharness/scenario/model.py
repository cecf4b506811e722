"""A scenario: what is to happen, never what a target does with it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=80)]
ReqId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]


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

    idx_mapping: tuple[int, ...]
    num_sampled: int | tuple[int, ...]


class Scenario(_Strict):
    name: Name
    description: str = ""
    source: str | None = None
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
    initial: int | None = None
    calls: tuple[Call, ...] = ()
    file: str | None = Field(default=None, exclude=True)  # where it was read from
