"""The sequential reference: each request alone, one token at a time.

The fake hybrid model is defined here; the pipeline's batched version must agree.
All arithmetic is on 64-bit integers that wrap round.  Stage ``s`` holds, for a
request, the last ``WINDOW`` inputs (the convolution) and one recurrent state ``S``
(the temporal state), all 0 before the first token.  For the token ``t`` at position
``p``, with ``x[p]`` what the stage before passed on (``embed(t)`` at first)::

    u = x[p] + CONV[0] * x[p - 1] + CONV[1] * x[p - 2] + CONV[2] * x[p - 3]
    S = DECAY * S + u + STAGE * (s + 1)
    y = x[p] + GAIN * S
    x[p] of the next stage = y ^ (y >> 29)         (arithmetic shift)

and the token at position ``p + 1`` is ``(x >> 20) mod VOCAB_SIZE`` after the last stage.
"""

from __future__ import annotations

from array import array

import numpy as np

from ..scenario.tokens import VOCAB_SIZE, prompt_token_ids

DECAY = 6_364_136_223_846_793_005  # odd, so it has an inverse modulo 2**64
GAIN = 2_862_933_555_777_941_757
STAGE = 3_037_000_493_876_543_210
EMBED_GAIN = 3_202_034_522_624_059_733
EMBED_BIAS = 1_442_695_040_888_963_407
CONV = (3, 5, 7)
WINDOW = len(CONV)
_TWO_63, _MASK = 1 << 63, (1 << 64) - 1


def _wrap(value: int) -> int:
    """The signed 64-bit integer with the same lowest bits."""
    return ((value + _TWO_63) & _MASK) - _TWO_63


class SequentialRequest:
    """Token ids of one request as a single process would produce them."""

    def __init__(self, req_num: int, prompt_len: int, num_stages: int, seed: int):
        self._temporal = [0] * num_stages  # S of each stage
        self._conv = [(0, 0, 0)] * num_stages  # x[p - 1], x[p - 2], x[p - 3] of each stage
        # [num_stages + 1][num_tokens] after 0, 1, ... stages
        self._hidden = [array("q") for _ in range(num_stages + 1)]
        self.tokens: list[int] = prompt_token_ids(req_num, prompt_len, seed).tolist()
        for token in self.tokens:
            follows = self._run(token)
        self.tokens.append(follows)

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Tokens at positions ``start`` to ``stop - 1``, prompt and output alike."""
        while len(self.tokens) < stop:
            self.tokens.append(self._run(self.tokens[-1]))
        return self.tokens[start:stop]

    def hidden(self, stage: int, start: int, stop: int) -> np.ndarray:
        """Hidden values at positions ``start`` to ``stop - 1`` after `stage` stages."""
        self.token_ids(0, stop + 1)
        return np.array(self._hidden[stage][start:stop])

    def _run(self, token: int) -> int:
        """Feeds one token through all stages; returns the token that follows it."""
        x = _wrap(token * EMBED_GAIN + EMBED_BIAS)
        self._hidden[0].append(x)
        for stage, (before1, before2, before3) in enumerate(self._conv):
            u = x + CONV[0] * before1 + CONV[1] * before2 + CONV[2] * before3
            state = (DECAY * self._temporal[stage] + u + STAGE * (stage + 1)) & _MASK
            self._temporal[stage] = state
            self._conv[stage] = (x, before1, before2)
            y = _wrap(x + GAIN * state)
            x = y ^ (y >> 29)
            self._hidden[stage + 1].append(x)
        return (x >> 20) % VOCAB_SIZE


class SequentialReference:
    """All requests of a scenario, run when first asked for."""

    def __init__(self, prompt_lens: list[int], *, num_stages: int, seed: int):
        self._prompt_lens = prompt_lens  # [num_requests] prompt tokens
        self._num_stages = num_stages
        self._seed = seed
        self._requests: dict[int, SequentialRequest] = {}

    def token_ids(self, req_num: int, start: int, stop: int) -> list[int]:
        """Tokens of a request at positions ``start`` to ``stop - 1``."""
        return self._request(req_num).token_ids(start, stop)

    def hidden(self, req_num: int, stage: int, start: int, stop: int) -> np.ndarray:
        """Hidden values of a request at those positions, after `stage` stages."""
        return self._request(req_num).hidden(stage, start, stop)

    def _request(self, req_num: int) -> SequentialRequest:
        if req_num not in self._requests:
            self._requests[req_num] = SequentialRequest(
                req_num, self._prompt_lens[req_num], self._num_stages, self._seed
            )
        return self._requests[req_num]
