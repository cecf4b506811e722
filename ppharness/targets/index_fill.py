"""The two wrong answers to the founding bug (vLLM issue 50947, fixed by 50327)."""

from __future__ import annotations

import torch

from .builtin import BuiltinMambaState, BuiltinTarget


class IndexFillState(BuiltinMambaState):
    """The scalar branch as vLLM 0.24.0 to 0.27.1 had it.

    ``index_fill_`` wants int64 indices, so an int32 mapping raises; an int64 one with
    a ``-1`` row wraps round to the last slot.
    """

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        if isinstance(num_sampled, int):
            self.num_accepted_tokens.index_fill_(0, idx_mapping, max(num_sampled, 1))
        else:
            super().postprocess_state(idx_mapping, num_sampled, num_computed_tokens)


class IndexFillInt64State(IndexFillState):
    """The tempting fix: convert the mapping, and let ``-1`` hit the last slot."""

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        if isinstance(num_sampled, int):
            idx_mapping = idx_mapping.to(torch.int64)
        super().postprocess_state(idx_mapping, num_sampled, num_computed_tokens)


class IndexFillTarget(BuiltinTarget):
    """Raises on an int32 mapping, on every rank that is not the last."""

    name = "index-fill"
    mamba_state_class = IndexFillState


class IndexFillInt64Target(BuiltinTarget):
    """Overwrites the last slot's count where a row is filtered out."""

    name = "index-fill-int64"
    mamba_state_class = IndexFillInt64State
