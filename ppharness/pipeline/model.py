"""The fake hybrid model of one stage, batched; ``oracle.reference`` defines it.

It reads recurrent state the way a real one does: the convolution window shifted by
``num_accepted - 1`` tokens, the temporal state from that many columns further on.
So a wrong accepted count changes the tokens that come out.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from ..oracle.reference import CONV, EMBED_BIAS, EMBED_GAIN, GAIN, STAGE, WINDOW
from ..scenario.model import Scenario
from ..scenario.tokens import VOCAB_SIZE
from ..targets.interface import RecurrentStates
from .step_tensors import StepTensors

_TWO_64 = 1 << 64


def _wrap(value: int) -> int:
    """An unsigned 64-bit value as the signed one with the same bits."""
    value %= _TWO_64
    return value - _TWO_64 if value >= _TWO_64 // 2 else value


def make_recurrent_states(scenario: Scenario, device: torch.device) -> RecurrentStates:
    """Blocks for every slot; the last row and block are spare, for rows without a slot."""
    k = scenario.num_speculative_tokens
    columns = k + 1
    if scenario.mamba_cache_mode == "align":
        longest = max(r.prompt_tokens + r.max_tokens for r in scenario.requests) + k + 1
        columns += -(-longest // scenario.mamba_block_size)
    rows = scenario.max_num_reqs
    table = torch.arange(rows * columns, dtype=torch.int32, device=device).view(rows, columns)
    spare = torch.full((1, columns), rows * columns, dtype=torch.int32, device=device)
    num_blocks = rows * columns + 1
    return RecurrentStates(
        conv=torch.zeros(num_blocks, WINDOW + k, dtype=torch.int64, device=device),
        temporal=torch.zeros(num_blocks, dtype=torch.int64, device=device),
        block_table=torch.cat([table, spare]),
        block_size=scenario.mamba_block_size,
        window=WINDOW,
    )


class StageModel:
    """One stage's layers: embedding on the first, sampling of tokens on the last."""

    def __init__(self, scenario: Scenario, stage: int, states: RecurrentStates):
        self.states = states
        self.align = scenario.mamba_cache_mode == "align"
        self.bias = _wrap(STAGE * (stage + 1))
        self.k = scenario.num_speculative_tokens
        device = states.conv.device
        self.weights = torch.tensor([1, *CONV], device=device)[:, None]  # of a token's taps
        self.lane = torch.arange(WINDOW + self.k, device=device)
        self.zero = torch.zeros(1, dtype=torch.int64, device=device)
        self.spare = len(states.temporal) - 1  # the block of states that are not kept
        # [max_num_reqs + 1, num_columns + 1] with a column of it
        self.table = pad(states.block_table.to(torch.int64), (0, 1), value=self.spare)

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[num_tokens]`` token ids -> ``[num_tokens]`` int64 hidden values."""
        return input_ids * EMBED_GAIN + EMBED_BIAS

    def forward(
        self,
        x: torch.Tensor,  # [num_tokens] int64 from the stage before
        step: StepTensors,
        num_accepted: torch.Tensor,  # [max_num_reqs] as gathered for this step
        num_computed: torch.Tensor,  # [num_reqs] before the step
    ) -> torch.Tensor:
        """Runs this stage's layers on a batch; ``[num_tokens]`` for the next stage."""
        states, shape = self.states, step.shape
        blocks = self._running_blocks(step, num_computed)
        head = source = blocks[:, 0]
        window = states.conv[head]
        if self.k:
            shift = num_accepted[step.slot].clamp(1, self.k + 1).to(torch.int64)[:, None] - 1
            source = blocks.gather(1, shift)[:, 0]
            window = window.gather(1, shift + self.lane[:WINDOW])
        known = num_computed > 0  # else all is 0 before the first token
        window = window * known[:, None]  # [num_reqs, WINDOW]
        temporal = states.temporal[source] * known  # [num_reqs]

        inputs = torch.cat([window.flatten(), x, self.zero])
        u = (self.weights * inputs[shape.taps]).sum(0) + self.bias
        scaled = u * shape.inverse
        summed = scaled.cumsum(0)
        ahead = (summed - scaled)[shape.start]  # of the rows before
        history = shape.decay * ((temporal - ahead)[shape.row] + summed)
        states.conv[head] = inputs[shape.window]
        states.temporal[blocks.gather(1, shape.kept_column)] = history[shape.kept]
        y = torch.add(x, history, alpha=_wrap(GAIN))
        return y ^ (y >> 29)

    def sample(self, x: torch.Tensor, step: StepTensors) -> torch.Tensor:
        """``[num_reqs, width]`` int64: the tokens each row yields, 0 beyond them."""
        shape = step.shape
        return ((x[shape.picked] >> 20) % VOCAB_SIZE) * shape.is_picked

    def _running_blocks(self, step: StepTensors, num_computed: torch.Tensor) -> torch.Tensor:
        """``[num_reqs, K + 2]`` blocks from each row's running one on; the last is spare."""
        table = self.table[step.block_row]
        if not self.align:
            return table
        last_token = num_computed + step.num_scheduled - 1
        column = last_token // self.states.block_size
        column = column.clamp(0, table.shape[1] - self.k - 2)[:, None]
        return pad(table.gather(1, column + self.lane[: self.k + 1]), (0, 1), value=self.spare)
