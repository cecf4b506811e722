"""Token ids of the prompts: made up, the same on every rank for one seed."""

from __future__ import annotations

import numpy as np

VOCAB_SIZE = 32_768


def prompt_token_ids(req_num: int, num_tokens: int, seed: int) -> np.ndarray:
    """``[num_tokens]`` int64 token ids of a request's prompt, in ``[0, VOCAB_SIZE)``."""
    rng = np.random.default_rng((seed, req_num))
    return rng.integers(0, VOCAB_SIZE, size=num_tokens, dtype=np.int64)
