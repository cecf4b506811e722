"""The sequential reference against a loop over single tokens in plain Python."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppharness.oracle.reference import (
    CONV,
    DECAY,
    EMBED_BIAS,
    EMBED_GAIN,
    GAIN,
    STAGE,
    SequentialReference,
    SequentialRequest,
)
from ppharness.scenario.tokens import VOCAB_SIZE, prompt_token_ids


def wrap(value: int) -> int:
    """A 64-bit integer that wraps round, as its signed value."""
    return (value + 2**63) % 2**64 - 2**63


def naive_token_ids(prompt: list[int], num_tokens: int, num_stages: int) -> list[int]:
    """Prompt and outputs, `num_tokens` in all, each token through all stages by itself."""
    tokens = list(prompt)
    inputs: list[list[int]] = [[] for _ in range(num_stages)]  # x of every position, per stage
    states = [0] * num_stages
    for position in range(num_tokens - 1):
        x = wrap(tokens[position] * EMBED_GAIN + EMBED_BIAS)
        for stage in range(num_stages):
            inputs[stage].append(x)
            u = x
            for lag in (1, 2, 3):
                if position >= lag:
                    u = wrap(u + CONV[lag - 1] * inputs[stage][position - lag])
            states[stage] = wrap(DECAY * states[stage] + u + STAGE * (stage + 1))
            y = wrap(x + GAIN * states[stage])
            x = y ^ (y >> 29)
        if position + 1 >= len(prompt):
            tokens.append((x >> 20) % VOCAB_SIZE)
    return tokens[:num_tokens]


@settings(max_examples=60, deadline=None)
@given(
    prompt_len=st.integers(1, 40),
    num_outputs=st.integers(0, 20),
    num_stages=st.integers(1, 16),
    req_num=st.integers(0, 1000),
    seed=st.integers(0, 2**31),
)
def test_equals_a_loop_over_single_tokens(
    prompt_len: int, num_outputs: int, num_stages: int, req_num: int, seed: int
) -> None:
    prompt = prompt_token_ids(req_num, prompt_len, seed).tolist()
    request = SequentialRequest(req_num, prompt_len, num_stages, seed)
    total = prompt_len + num_outputs
    assert request.token_ids(0, total) == naive_token_ids(prompt, total, num_stages)


@settings(max_examples=30, deadline=None)
@given(prompt_len=st.integers(1, 40), num_stages=st.integers(1, 5))
def test_every_token_follows_from_all_before(prompt_len: int, num_stages: int) -> None:
    request = SequentialRequest(3, prompt_len, num_stages, 7)
    prompt = prompt_token_ids(3, prompt_len, 7).tolist()
    wanted = naive_token_ids(prompt, prompt_len + 5, num_stages)
    assert request.token_ids(0, prompt_len + 5) == wanted


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=9))
def test_asking_in_any_order_makes_no_difference(slices: list[tuple[int, int]]) -> None:
    reference = SequentialReference([4, 11], num_stages=2, seed=5)
    whole = naive_token_ids(prompt_token_ids(1, 11, 5).tolist(), 60, 2)
    for start, length in slices:
        assert reference.token_ids(1, start, start + length) == whole[start : start + length]


def test_long_prompt() -> None:
    prompt = prompt_token_ids(0, 3000, 0).tolist()
    got = SequentialReference([3000], num_stages=2, seed=0).token_ids(0, 3000, 3003)
    assert got == naive_token_ids(prompt, 3003, 2)[3000:]


def test_starts_with_the_prompt() -> None:
    reference = SequentialReference([6], num_stages=3, seed=9)
    assert reference.token_ids(0, 0, 6) == prompt_token_ids(0, 6, 9).tolist()


@pytest.mark.parametrize(("req_num", "num_stages", "seed"), [(1, 4, 0), (0, 3, 0), (0, 4, 1)])
def test_request_stages_and_seed_matter(req_num: int, num_stages: int, seed: int) -> None:
    outputs = SequentialRequest(0, 20, 4, 0).token_ids(20, 24)
    assert SequentialRequest(req_num, 20, num_stages, seed).token_ids(20, 24) != outputs


def test_prompts_are_token_ids_and_the_same_every_time() -> None:
    tokens = prompt_token_ids(2, 5000, 3)
    assert tokens.min() >= 0 and tokens.max() < VOCAB_SIZE
    assert tokens.tolist() == prompt_token_ids(2, 5000, 3).tolist()
    assert prompt_token_ids(2, 10, 3).tolist() == tokens[:10].tolist()
