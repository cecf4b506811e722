"""Host memory that a GPU reads, for a cached release without its compiled extensions.

A release asks its extension for a device view of pinned host memory.  Its Triton
kernels can read pinned memory through the host's pointer as well, and nothing that is
driven here gives such a view to anything but a kernel.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch


def install() -> None:
    """Before the release's buffer module is imported: it copies the name."""
    if hasattr(torch.ops._C, "get_cuda_view_from_cpu_tensor"):
        return
    torch_utils: Any = importlib.import_module("vllm.utils.torch_utils")
    torch_utils.get_accelerator_view_from_cpu_tensor = lambda cpu_tensor: cpu_tensor
