"""What releases do differently: one field per difference, found by looking.

Signatures tell most of it, the source text of one function some, and only the
rest is told by version.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .errors import TargetError

NEWEST_KNOWN = (0, 33)


@dataclass(frozen=True)
class Differences:
    """Of one release."""

    # int32 to 0.27.1 and in 0.31.0, int64 otherwise
    mapping_dtype: torch.dtype
    # int32 to 0.27.1, intp from 0.28.0; a filtered mapping is made from it
    mapping_np_dtype: np.dtype[Any]
    # from 0.25.0: postprocess_state(..., num_computed_tokens=None)
    state_takes_num_computed_tokens: bool
    # from 0.25.0
    state_has_preprocess: bool
    # from 0.31.0: the length cap is read only of batches with a prefill
    mask_takes_is_prefilling: bool
    # from 0.30.0
    relay_sends_drafts: bool
    # 0.30.0 to 0.32.0: broadcast_drafts(all slots, batch); from 0.33.0: (rows)
    drafts_sent_by_slot: bool
    # from 0.33.0: receive(batch, recv_drafts)
    receive_is_told_of_drafts: bool
    # 0.30.0 to 0.32.0: get_prev_sampled_outputs(draft_tokens_to_update)
    prev_outputs_write_drafts: bool
    # from 0.33.0: post_update(..., draft_tokens, draft_tokens_out)
    post_update_writes_drafts: bool


def numbers_of(version: str) -> tuple[int, ...] | None:
    """`(0, 34, 0)` of `0.34.0.dev1+g12ab`; None where it does not start with numbers."""
    match = re.match(r"\d+(?:\.\d+)+", version)
    return tuple(int(part) for part in match[0].split(".")) if match else None


def find_differences(version: str, modules: dict[str, Any]) -> Differences:
    """By looking at the release's `mamba_hybrid`, `pp_utils` and `input_batch` modules."""
    state = modules["mamba_hybrid"].MambaHybridModelState
    handler = modules["pp_utils"].PPHandler
    send_drafts = getattr(handler, "broadcast_drafts", None)
    batch_text = _text_of(modules["input_batch"].InputBatch)
    return Differences(
        mapping_dtype=_mapping_dtype(batch_text, version),
        mapping_np_dtype=_mapping_np_dtype(batch_text, version),
        state_takes_num_computed_tokens=takes(state.postprocess_state, "num_computed_tokens"),
        state_has_preprocess=hasattr(state, "preprocess_state"),
        mask_takes_is_prefilling=(
            "is_prefilling_np" in _text_of(modules["pp_utils"].compute_need_sampled_mask)
        ),
        relay_sends_drafts=send_drafts is not None,
        drafts_sent_by_slot=send_drafts is not None and takes(send_drafts, "input_batch"),
        receive_is_told_of_drafts=takes(handler.receive, "recv_drafts"),
        prev_outputs_write_drafts=takes(handler.get_prev_sampled_outputs, "draft_tokens_to_update"),
        post_update_writes_drafts=takes(modules["input_batch"].post_update, "draft_tokens"),
    )


def takes(function: Callable[..., Any], name: str) -> bool:
    return name in inspect.signature(function).parameters


def check_signature(function: Callable[..., Any], known: str, where: str, version: str) -> None:
    """TargetError where a call with the parameters in `known` would not fit.

    `known` lists what the adapters may pass, those that every release takes before a `|`.
    """
    always, _, sometimes = known.partition("|")
    parameters = inspect.signature(function).parameters
    missing = [name for name in always.split() if name not in parameters]
    new = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in ("self", *always.split(), *sometimes.split())
    ]
    if missing or new:
        raise TargetError(
            f"vLLM {version} cannot be driven: {where}{inspect.signature(function)} "
            + (f"has no parameter {', '.join(missing)}" if missing else "")
            + (" and " if missing and new else "")
            + (f"wants {', '.join(new)}, which no adapter knows" if new else "")
        )


def _text_of(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


def _mapping_dtype(batch_text: str, version: str) -> torch.dtype:
    """What the release's own dummy batch has, which is what its model runner makes."""
    match = re.search(r"\bidx_mapping = torch\.arange\([^)]*dtype=torch\.(int32|int64)", batch_text)
    if match is not None:
        return torch.int32 if match[1] == "int32" else torch.int64
    numbers = numbers_of(version) or NEWEST_KNOWN
    return torch.int32 if numbers < (0, 28) or numbers[:2] == (0, 31) else torch.int64


def _mapping_np_dtype(batch_text: str, version: str) -> np.dtype[Any]:
    match = re.search(
        r"\bidx_mapping_np = np\.arange\([^)]*dtype=np\.(int32|int64|intp)", batch_text
    )
    if match is not None:
        return np.dtype(match[1])
    numbers = numbers_of(version) or NEWEST_KNOWN
    return np.dtype(np.int32 if numbers < (0, 28) else np.intp)
