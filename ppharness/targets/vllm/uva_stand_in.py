"""Host memory that a GPU reads, for a cached release without its compiled extensions.

A release asks its extension for a device view of pinned host memory.  Its Triton
kernels can read pinned memory through the host's pointer as well, and nothing that is
driven here gives such a view to anything but a kernel.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import torch

# What kernels the extensions have for this GPU: none.
_ASKED_AT_IMPORT = (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
    "cutlass_sparse_scaled_mm_supported",
)


def install_extensions() -> None:
    """Before the release's platform for CUDA is imported: it imports the extensions.

    A cached release holds none of them; they only register operators, none of which is
    driven here.
    """
    for name in ("vllm._C", "vllm._C_stable_libtorch"):
        sys.modules.setdefault(name, ModuleType(name))
    for name in ("vllm.vllm_flash_attn", "vllm.vllm_flash_attn.flash_attn_interface"):
        sys.modules.setdefault(name, _Absent(name))
    for name in _ASKED_AT_IMPORT:
        if not hasattr(torch.ops._C, name):
            setattr(torch.ops._C, name, lambda *args: False)


class _Absent(ModuleType):
    """A module around an extension that is not there: all it offers is refused or does nothing."""

    FA2_AVAILABLE = FA3_AVAILABLE = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: False


def install() -> None:
    """Before the release's buffer module is imported: it copies the name."""
    if hasattr(torch.ops._C, "get_cuda_view_from_cpu_tensor"):
        return
    torch_utils: Any = importlib.import_module("vllm.utils.torch_utils")
    torch_utils.get_accelerator_view_from_cpu_tensor = lambda cpu_tensor: cpu_tensor
