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

from itertools import accumulate

import numpy as np

from ..scenario.tokens import VOCAB_SIZE, prompt_token_ids

DECAY = 6_364_136_223_846_793_005  # odd, so it has an inverse modulo 2**64
GAIN = 2_862_933_555_777_941_757
STAGE = 3_037_000_493_876_543_210
EMBED_GAIN = 3_202_034_522_624_059_733
EMBED_BIAS = 1_442_695_040_888_963_407
CONV = (3, 5, 7)
WINDOW = len(CONV)
_MASK = (1 << 64) - 1


class SequentialRequest:
    """Token ids of one request as a single process would produce them."""

    def __init__(self, req_num: int, prompt_len: int, num_stages: int, seed: int):
        self._temporal = [0] * num_stages
        self._hidden = np.empty((num_stages + 1, 0), dtype=np.int64)  # after 0, 1, ... stages
        self._num_kept = 0
        self._conv = [np.zeros(WINDOW, dtype=np.int64) for _ in range(num_stages)]
        self.tokens: list[int] = prompt_token_ids(req_num, prompt_len, seed).tolist()
        self.tokens.append(self._run(self.tokens))

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Tokens at positions ``start`` to ``stop - 1``, prompt and output alike."""
        while len(self.tokens) < stop:
            self.tokens.append(self._run(self.tokens[-1:]))
        return self.tokens[start:stop]

    def hidden(self, stage: int, start: int, stop: int) -> np.ndarray:
        """Hidden values at positions ``start`` to ``stop - 1`` after `stage` stages."""
        self.token_ids(0, stop + 1)
        return self._hidden[stage, start:stop]

    def _run(self, tokens: list[int]) -> int:
        """Feeds tokens through all stages; returns the token that follows them."""
        with np.errstate(over="ignore"):
            x = np.array(tokens, dtype=np.int64) * np.int64(EMBED_GAIN) + np.int64(EMBED_BIAS)
            layers = [x]
            for stage in range(len(self._temporal)):
                layers.append(x := self._stage(x, stage))
        self._keep(np.stack(layers))
        return int((x[-1] >> 20) % VOCAB_SIZE)

    def _keep(self, layers: np.ndarray) -> None:
        """Appends ``[num_stages + 1, num_tokens]`` hidden values, with room for more."""
        start, stop = self._num_kept, self._num_kept + layers.shape[1]
        if stop > self._hidden.shape[1]:
            room = np.empty((layers.shape[0], max(2 * stop, 256)), dtype=np.int64)
            room[:, :start] = self._hidden[:, :start]
            self._hidden = room
        self._hidden[:, start:stop] = layers
        self._num_kept = stop

    def _stage(self, x: np.ndarray, stage: int) -> np.ndarray:
        window = np.concatenate([self._conv[stage], x])
        self._conv[stage] = window[-WINDOW:]
        u = x.copy()
        for lag, weight in enumerate(CONV, start=1):
            u += weight * window[WINDOW - lag : len(window) - lag]
        bias = STAGE * (stage + 1)
        states = accumulate(
            u.tolist(),
            lambda s, u_p: (DECAY * s + u_p + bias) & _MASK,
            initial=self._temporal[stage],
        )
        history = np.fromiter(states, dtype=np.uint64, count=len(x) + 1)
        self._temporal[stage] = int(history[-1])
        y = x + np.int64(GAIN) * history[1:].view(np.int64)
        return y ^ (y >> 29)


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
