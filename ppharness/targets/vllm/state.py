"""The release's Mamba state module behind the harness's interface."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ..interface import InputBatch, TargetConfig
from .parts import Parts


class VllmMambaState:
    """A `MambaHybridModelState` without a model around it.

    Its constructor wants a whole engine configuration and a model; what the methods
    driven here read is set by hand instead.
    """

    def __init__(self, parts: Parts, config: TargetConfig):
        state = object.__new__(parts.state_class)
        state.max_num_reqs = config.max_num_reqs
        state.device = config.device
        state.num_accepted_tokens_gpu = torch.ones(
            config.max_num_reqs, dtype=torch.int32, device=config.device
        )
        state._align_mode = False
        state._mamba_ctx = None
        state.recoverssm = None  # from 0.29.0
        state.rope_state = None
        state.prompt_embeds_state = None  # from 0.29.0
        self._state: Any = state
        self._parts = parts

    @property
    def num_accepted_tokens(self) -> torch.Tensor:
        """``[max_num_reqs]`` int32; setting it makes the release use another tensor."""
        tensor: torch.Tensor = self._state.num_accepted_tokens_gpu
        return tensor

    @num_accepted_tokens.setter
    def num_accepted_tokens(self, tensor: torch.Tensor) -> None:
        self._state.num_accepted_tokens_gpu = tensor

    def add_request(self, req_idx: int, num_computed_tokens: int) -> None:
        """A request takes a slot; whether its count is reset is the release's matter."""
        new_req_data = SimpleNamespace(
            num_computed_tokens=num_computed_tokens, prefill_token_ids=[], mm_features=[]
        )
        self._state.add_request(req_idx, new_req_data)

    def remove_request(self, req_idx: int) -> None:
        """The release goes by the request's name, which is only used for multimodal input."""
        self._state.remove_request(f"slot-{req_idx}")

    def preprocess_state(self, batch: InputBatch, num_computed_tokens: torch.Tensor) -> None:
        """Before the forward; without align mode every release returns at once."""
        if not self._parts.differences.state_has_preprocess:
            return
        self._state.preprocess_state(
            input_batch=batch,
            block_tables=(),
            kv_cache_config=None,
            num_computed_tokens=num_computed_tokens,
        )

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        """The mapping goes through as it is: what the release does with -1 is under test."""
        if self._parts.differences.state_takes_num_computed_tokens:
            self._state.postprocess_state(idx_mapping, num_sampled, num_computed_tokens)
        else:
            self._state.postprocess_state(idx_mapping, num_sampled)
