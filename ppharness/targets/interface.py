"""What a target is: two or three factories, and the objects they make.

A target sees tensors and ``InputBatch`` only.  It never learns what is expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch


@dataclass
class RecurrentStates:
    """The recurrent state of one rank in align mode, in blocks, as a cache holds it.

    The running block of a slot is column ``c`` of its block table; its convolution
    window lies in that block, and the temporal state after the ``j``-th token of a
    verify step lies in column ``c + j``.
    """

    conv: torch.Tensor  # [num_blocks, window + K] int64, oldest token first
    temporal: torch.Tensor  # [num_blocks] int64
    block_table: torch.Tensor  # [max_num_reqs, num_columns] int32, slot -> blocks
    block_size: int  # tokens
    window: int  # tokens that the convolution looks back


@dataclass(frozen=True)
class TargetConfig:
    """What an implementation is told when a scenario starts on one rank."""

    max_num_reqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_speculative_tokens: int  # K, 0 = off
    mamba_cache_mode: str  # "none" | "align"
    mamba_block_size: int
    pp_size: int
    pp_rank: int
    relay_depth: int  # steps from a sample to its use on the other ranks
    device: torch.device
    tp_size: int = 1
    tp_rank: int = 0
    # None = the target's own choice (a scenario did not pin it)
    idx_mapping_dtype: torch.dtype | None = None
    recurrent: RecurrentStates | None = None  # align mode only

    @classmethod
    def for_scenario(
        cls,
        scenario: Any,
        world: Any,
        idx_mapping_dtype: torch.dtype,
        relay_depth: int,
        recurrent: RecurrentStates | None,
    ) -> TargetConfig:
        """From a scenario's limits and a rank's place in the world."""
        return cls(
            max_num_reqs=scenario.max_num_reqs,
            max_num_batched_tokens=scenario.max_num_batched_tokens,
            max_model_len=scenario.max_model_len,
            num_speculative_tokens=scenario.num_speculative_tokens,
            mamba_cache_mode=scenario.mamba_cache_mode,
            mamba_block_size=scenario.mamba_block_size,
            pp_size=world.pp_size,
            pp_rank=world.pp_rank,
            relay_depth=relay_depth,
            device=world.device,
            tp_size=world.tp_size,
            tp_rank=world.tp_rank,
            idx_mapping_dtype=idx_mapping_dtype,
            recurrent=recurrent if scenario.mamba_cache_mode == "align" else None,
        )

    @property
    def is_last_rank(self) -> bool:
        return self.pp_rank == self.pp_size - 1


@dataclass
class InputBatch:
    """One step's batch, with the field names of vLLM's Model Runner V2."""

    req_ids: list[str]  # [num_reqs]
    num_reqs: int
    num_tokens: int
    idx_mapping: torch.Tensor  # [num_reqs] batch row -> slot, -1 = filtered out
    idx_mapping_np: np.ndarray  # [num_reqs] the same on the host
    query_start_loc: torch.Tensor  # [num_reqs + 1] int32
    query_start_loc_np: np.ndarray  # [num_reqs + 1] int32
    seq_lens: torch.Tensor  # [num_reqs] int32, computed + scheduled
    num_scheduled_tokens: np.ndarray  # [num_reqs] int32
    num_computed_tokens_np: np.ndarray  # [num_reqs] int32, the host's optimistic count
    prefill_len_np: np.ndarray  # [num_reqs] int32
    num_computed_prefill_tokens_np: np.ndarray  # [num_reqs] int32, min(computed, prefill_len)
    max_seq_len_np: np.ndarray  # [num_reqs] int32, prompt + max_tokens
    is_prefilling_np: np.ndarray  # [num_reqs] bool, computed < prefill_len
    num_draft_tokens: int  # over the whole batch
    num_draft_tokens_per_req: np.ndarray | None  # [num_reqs] int32, None without drafts
    input_ids: torch.Tensor  # [num_tokens] int32
    positions: torch.Tensor  # [num_tokens] int64
    step: int = 0

    @property
    def has_prefill(self) -> bool:
        return bool(self.is_prefilling_np.any())


@dataclass
class SampledOutputs:
    """What the last rank sampled ``relay_depth`` steps ago, as another rank hears it."""

    sampled_tokens: torch.Tensor  # [num_reqs, 1 or K + 1] int64
    num_sampled: torch.Tensor  # [num_reqs] int32
    num_rejected: torch.Tensor  # [num_reqs] int32
    idx_mapping: torch.Tensor  # [num_reqs] batch row -> slot, -1 = do not apply
    draft_tokens: torch.Tensor | None = None  # [num_reqs, K] int64, where drafts are relayed


class TargetError(ValueError):
    """A target that cannot be used: said to the user, nothing was run."""


class TargetSkip(Exception):
    """Raised by a factory: this target cannot run this kind of scenario; says why."""


class PendingBroadcast(Protocol):
    def wait(self) -> None:
        """Until the data is there (on CUDA: makes the current stream wait)."""


class RelayChannel(Protocol):
    """The communicator of the sampled tokens, apart from that of the hidden states."""

    @property
    def group(self) -> Any:
        """The process group, for code that calls torch.distributed itself."""

    @property
    def last_rank(self) -> int:
        """Global rank of the last stage, the source of every broadcast."""

    def broadcast(self, tensor: torch.Tensor, what: str) -> PendingBroadcast:
        """From the last rank into everybody's `tensor`; returns at once."""


class MambaState(Protocol):
    """Per-request recurrent-state bookkeeping of one rank.

    Once made, the buffer's memory is moved between canaries; the tensor stays the same.
    An address taken before does not hold.  A buffer that is part of a larger tensor, or
    has views, is left where it is.
    """

    num_accepted_tokens: torch.Tensor  # [max_num_reqs] int32

    def add_request(self, req_idx: int, num_computed_tokens: int) -> None: ...

    def remove_request(self, req_idx: int) -> None: ...

    def preprocess_state(self, batch: InputBatch, num_computed_tokens: torch.Tensor) -> None: ...

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None: ...


class TokenRelay(Protocol):
    """Carries what the last rank sampled to the other ranks."""

    def on_req_idx_freed(self, req_idx: int) -> None: ...

    def receive(self, batch: InputBatch) -> bool:
        """On every rank but the last; True when every row of the batch decodes next."""

    def broadcast(
        self,
        sampled_token_ids: torch.Tensor,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        batch: InputBatch,
    ) -> None:
        """On the last rank."""

    def get_prev_sampled_outputs(self) -> SampledOutputs | None:
        """Once a step, before frees and adds."""


class RequestSlots(Protocol):
    """Per-request device state that the model runner itself keeps on one rank."""

    num_computed_tokens: torch.Tensor  # [max_num_reqs] int32
    last_sampled_tokens: torch.Tensor  # [max_num_reqs] int64

    def add_request(
        self,
        req_idx: int,
        req_id: str,
        prompt_len: int,
        token_ids: Sequence[int],
        num_computed_tokens: int,
        max_tokens: int,
    ) -> None: ...

    def remove_request(self, req_idx: int, req_id: str) -> None: ...

    def apply_sampled(self, outputs: SampledOutputs, query_start_loc: torch.Tensor | None) -> None:
        """Tokens and counts of rows that were sampled; `query_start_loc` on the last rank only."""

    def advance(self, batch: InputBatch) -> None:
        """The optimistic advance of the whole batch on the other ranks."""


class Target(Protocol):
    """A system under test."""

    name: str
    version: str | None
    exact: bool  # follows the protocol to the letter: the whole buffer is compared

    def idx_mapping_dtype(self) -> torch.dtype: ...

    def make_mamba_state(self, config: TargetConfig) -> MambaState: ...

    def make_token_relay(self, config: TargetConfig, channel: RelayChannel) -> TokenRelay: ...

    def make_request_slots(self, config: TargetConfig) -> RequestSlots: ...
