"""The names of a release that are driven, found and checked before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...vllm_cache import Release
from .differences import NEWEST_KNOWN, Differences, check_signature, find_differences, numbers_of
from .errors import TargetError
from .release import import_module
from .wire import Wire

_RUNNER = "vllm.v1.worker.gpu"
_MODULES = {
    "mamba_hybrid": f"{_RUNNER}.model_states.mamba_hybrid",
    "pp_utils": f"{_RUNNER}.pp_utils",
    "input_batch": f"{_RUNNER}.input_batch",
    "states": f"{_RUNNER}.states",
}
# Module, name, and the parameters that every release takes | those of some.
_CALLS = (
    ("mamba_hybrid", "MambaHybridModelState.add_request", "req_index new_req_data"),
    ("mamba_hybrid", "MambaHybridModelState.remove_request", "req_id"),
    (
        "mamba_hybrid",
        "MambaHybridModelState.postprocess_state",
        "idx_mapping num_sampled | num_computed_tokens",
    ),
    ("pp_utils", "compute_need_sampled_mask", "input_batch"),
    ("pp_utils", "PPHandler.__init__", "max_num_reqs num_speculative_steps device"),
    ("pp_utils", "PPHandler.on_req_idx_freed", "req_idx"),
    ("pp_utils", "PPHandler.receive", "input_batch | recv_drafts"),
    (
        "pp_utils",
        "PPHandler.broadcast",
        "sampled_token_ids num_sampled num_rejected input_batch",
    ),
    ("pp_utils", "PPHandler.get_prev_sampled_outputs", "| draft_tokens_to_update"),
    (
        "input_batch",
        "post_update",
        "idx_mapping num_computed_tokens last_sampled_tokens output_bin_counts sampled_tokens "
        "num_sampled num_rejected query_start_loc all_token_ids total_len "
        "| draft_tokens draft_tokens_out",
    ),
    (
        "input_batch",
        "post_update_num_computed_tokens",
        "idx_mapping num_computed_tokens query_start_loc",
    ),
    (
        "states",
        "RequestState.__init__",
        "max_num_reqs max_model_len max_num_batched_tokens num_speculative_steps vocab_size device",
    ),
    (
        "states",
        "RequestState.add_request",
        "req_id prompt_len all_token_ids num_computed_tokens max_tokens",
    ),
    ("states", "RequestState.remove_request", "req_id"),
    ("states", "RequestState.apply_staged_writes", ""),
)
_OPTIONAL_CALLS = (
    ("pp_utils", "PPHandler.broadcast_drafts", "draft_tokens | input_batch"),
    (
        "mamba_hybrid",
        "MambaHybridModelState.preprocess_state",
        "input_batch num_computed_tokens | block_tables kv_cache_config",
    ),
)


@dataclass(frozen=True)
class Parts:
    """What the adapters of one release are made of."""

    release: Release
    differences: Differences
    state_class: Any
    handler_class: Any
    request_state_class: Any
    post_update: Any
    post_update_num_computed_tokens: Any
    wire: Wire
    warnings: tuple[str, ...]


_found: Parts | None = None


def find_parts(release: Release) -> Parts:
    """Of the release that this process holds; TargetError names what is missing."""
    global _found
    if _found is not None and _found.release == release:
        return _found
    modules = {short: import_module(name, release) for short, name in _MODULES.items()}
    for short, path, known in _CALLS:
        check_signature(_look_up(modules, short, path, release), known, path, release.version)
    for short, path, known in _OPTIONAL_CALLS:
        if _has(modules[short], path):
            check_signature(_look_up(modules, short, path, release), known, path, release.version)
    batch: Any = modules["input_batch"]
    _found = Parts(
        release=release,
        differences=find_differences(release.version, modules),
        state_class=_look_up(modules, "mamba_hybrid", "MambaHybridModelState", release),
        handler_class=_look_up(modules, "pp_utils", "PPHandler", release),
        request_state_class=_look_up(modules, "states", "RequestState", release),
        post_update=batch.post_update,
        post_update_num_computed_tokens=batch.post_update_num_computed_tokens,
        wire=Wire(modules["pp_utils"]),
        warnings=_warnings(release.version),
    )
    return _found


def _warnings(version: str) -> tuple[str, ...]:
    numbers = numbers_of(version)
    newest = ".".join(map(str, NEWEST_KNOWN))
    if numbers is None:
        return (f"vLLM's version {version!r} is unknown; driven as what its signatures show",)
    if numbers[:2] > NEWEST_KNOWN:
        return (
            f"vLLM {version} is newer than {newest}, the newest that these adapters were made "
            "for; driven as that one where its signatures do not tell",
        )
    return ()


def _has(module: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True


def _look_up(modules: dict[str, Any], short: str, path: str, release: Release) -> Any:
    found = modules[short]
    for name in path.split("."):
        if not hasattr(found, name):
            raise TargetError(
                f"vLLM {release.version} cannot be driven: {_MODULES[short]} has no {path}"
            )
        found = getattr(found, name)
    return found
