"""The built-in Mamba state module: accepted counts per request slot."""

from __future__ import annotations

import torch

from ..kernels.align import AlignTables, postprocess_align, preprocess_align
from ..kernels.num_accepted import fill_num_accepted, scatter_num_accepted
from .interface import InputBatch, TargetConfig


class BuiltinMambaState:
    """Keeps ``num_accepted_tokens`` right on one rank; subclass it to change a part.

    In align mode it also moves the recurrent state between blocks of
    ``mamba_block_size`` tokens, whose running column it keeps per slot.
    """

    num_accepted_tokens: torch.Tensor  # [max_num_reqs] int32

    def __init__(self, config: TargetConfig):
        self.config = config
        self.max_num_reqs = config.max_num_reqs
        self.num_accepted_tokens = torch.ones(
            config.max_num_reqs, dtype=torch.int32, device=config.device
        )
        self.align: AlignTables | None = None
        if config.recurrent is not None:
            self.align = AlignTables.create(config.max_num_reqs, config.recurrent)

    def add_request(self, req_idx: int, num_computed_tokens: int) -> None:
        """A request takes a slot; what an earlier owner left there must not leak in."""
        self.num_accepted_tokens[req_idx].fill_(1)
        if self.align is not None:
            block = (num_computed_tokens - 1) // self.config.mamba_block_size
            self.align.state_idx[req_idx].fill_(block)

    def remove_request(self, req_idx: int) -> None:
        """A request leaves its slot; nothing to do, the next owner resets it."""

    def preprocess_state(self, batch: InputBatch, num_computed_tokens: torch.Tensor) -> None:
        """Before the forward: in align mode, state moves on where a row enters a new block.

        Args:
            num_computed_tokens: ``[max_num_reqs]`` int32 per slot, before the step.
        """
        if self.align is not None:
            preprocess_align(
                batch.idx_mapping,
                batch.query_start_loc,
                num_computed_tokens,
                self.num_accepted_tokens,
                self.align,
            )

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        """After sampling: records how many tokens of each row's step were accepted.

        Args:
            idx_mapping: ``[num_reqs]`` int32 or int64, negative rows are skipped.
            num_sampled: ``[num_reqs]`` int32, or one int for all rows; at least 1 is stored.
            num_computed_tokens: ``[max_num_reqs]`` int32 per slot, after the step.
        """
        if isinstance(num_sampled, int):
            fill_num_accepted(idx_mapping, self.num_accepted_tokens, num_sampled)
        else:
            scatter_num_accepted(idx_mapping, self.num_accepted_tokens, num_sampled)
        if self.align is not None and num_computed_tokens is not None:
            postprocess_align(
                idx_mapping, num_computed_tokens, self.num_accepted_tokens, self.align
            )
