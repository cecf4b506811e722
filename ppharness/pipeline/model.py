"""The fake hybrid model of one stage, batched; ``oracle.reference`` defines it.

It reads recurrent state the way a real one does: the convolution window shifted by
``num_accepted - 1`` tokens, the temporal state from that many columns further on.
So a wrong accepted count changes the tokens that come out.
"""

from __future__ import annotations

import torch

from ..oracle.reference import CONV, DECAY, EMBED_BIAS, EMBED_GAIN, GAIN, STAGE, WINDOW
from ..scenario.model import Scenario
from ..scenario.tokens import VOCAB_SIZE
from ..targets.interface import RecurrentStates
from .batch import StepTensors

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
        device = states.conv.device
        longest = max(r.prompt_tokens + r.max_tokens for r in scenario.requests)
        longest = min(longest, scenario.max_num_batched_tokens)  # tokens of one row in one step
        decay, inverse = [1], [1]
        undo = pow(DECAY, -1, _TWO_64)
        for _ in range(max(longest, scenario.num_speculative_tokens + 1)):
            decay.append(decay[-1] * DECAY % _TWO_64)
            inverse.append(inverse[-1] * undo % _TWO_64)
        self.decay = torch.tensor([_wrap(v) for v in decay[1:]], device=device)  # DECAY ** (n + 1)
        self.inverse = torch.tensor([_wrap(v) for v in inverse[1:]], device=device)
        self.lane = torch.arange(WINDOW + scenario.num_speculative_tokens, device=device)

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[num_tokens]`` token ids -> ``[num_tokens]`` int64 hidden values."""
        return input_ids * EMBED_GAIN + EMBED_BIAS

    def forward(
        self,
        x: torch.Tensor,  # [num_tokens] int64 from the stage before
        step: StepTensors,
        num_accepted: torch.Tensor,  # [num_reqs] as gathered for this step
        num_computed: torch.Tensor,  # [num_reqs] before the step
    ) -> torch.Tensor:
        """Runs this stage's layers on a batch; ``[num_tokens]`` for the next stage."""
        states, row, index = self.states, step.row, step.index
        table = states.block_table[step.slot]  # the last row, a spare one, for slot -1
        column = torch.zeros_like(num_computed)
        if self.align:
            last = num_computed + step.num_scheduled - 1
            column = (last // states.block_size).clamp_(0, table.shape[1] - self._k - 1)
        shift = num_accepted.clamp(1, self._k + 1).to(torch.int64) - 1
        known = (num_computed > 0) & (step.slot >= 0)
        head = table.gather(1, column[:, None])[:, 0].to(torch.int64)
        from_column = table.gather(1, (column + shift)[:, None])[:, 0].to(torch.int64)
        conv = states.conv[head].gather(1, shift[:, None] + self.lane[:WINDOW])
        conv = torch.where(known[:, None], conv, 0)  # [num_reqs, WINDOW]
        temporal = torch.where(known, states.temporal[from_column], 0)  # [num_reqs]

        u = x + self.bias
        for lag, weight in enumerate(CONV, start=1):
            before = conv[row, (WINDOW + index - lag).clamp_(max=WINDOW - 1)]
            u = u + weight * torch.where(index >= lag, x.roll(lag), before)
        scaled = u * self.inverse[index]
        summed = scaled.cumsum(0)
        ahead = (summed - scaled)[step.start]  # of the rows before
        history = self.decay[index] * ((temporal - ahead)[row] + summed)
        self._store(x, conv, history, step, table, column)
        y = x + GAIN * history
        return y ^ (y >> 29)

    def sample(self, x: torch.Tensor, step: StepTensors) -> torch.Tensor:
        """``[num_reqs, width]`` int64: the tokens each row yields, 0 beyond them."""
        tokens = (x >> 20) % VOCAB_SIZE
        width = self._k + 1 if step.num_drafts else 1
        column = self.lane[:width]
        at = step.first_logit[:, None] + column
        picked = tokens[at.clamp(max=tokens.shape[0] - 1)]
        return torch.where(column < step.num_sampled[:, None], picked, 0)

    @property
    def _k(self) -> int:
        return len(self.lane) - WINDOW

    def _store(
        self,
        x: torch.Tensor,
        conv: torch.Tensor,
        history: torch.Tensor,
        step: StepTensors,
        table: torch.Tensor,
        column: torch.Tensor,
    ) -> None:
        """Keeps the state after each token of a decode row, after the last one of a chunk."""
        states, last_token = self.states, x.shape[0] - 1
        since = step.skip[:, None] + 1 + self.lane - WINDOW  # index in the row's tokens
        token = x[(step.start[:, None] + since).clamp(0, last_token)]
        old = conv.gather(1, (since + WINDOW).clamp(0, WINDOW - 1))
        window = torch.where(since >= 0, token, old)
        window = torch.where(since < step.num_scheduled[:, None], window, 0)
        states.conv[table.gather(1, column[:, None])[:, 0].to(torch.int64)] = window
        lane = self.lane[: self._k + 1]
        blocks = table.gather(1, column[:, None] + lane).to(torch.int64)
        kept = step.skip[:, None] + lane < step.num_scheduled[:, None]
        value = history[(step.start[:, None] + step.skip[:, None] + lane).clamp(max=last_token)]
        spare = states.temporal.shape[0] - 1
        states.temporal[torch.where(kept, blocks, spare).flatten()] = value.flatten()
