"""Which device, which backend, and how Triton runs: decided before triton is imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from .errors import WorldError

_DRIVER = "/proc/driver/nvidia"
LITTLE_MEMORY = 1 << 30  # bytes that a rank with its context and NCCL takes


@dataclass(frozen=True)
class DevicePlan:
    """Where the ranks of this host run."""

    kind: str  # "cpu" | "cuda"
    num_gpus: int
    note: str | None = None  # said in the first line, when `auto` had to choose
    through_host: bool = False  # CUDA tensors over gloo, where NCCL does not work

    @property
    def backend(self) -> str:
        return "nccl" if self.kind == "cuda" and not self.through_host else "gloo"

    def ranks_per_gpu(self, local_world_size: int) -> int:
        """0 without a GPU, 1 with enough of them, more when they are shared."""
        return -(-local_world_size // self.num_gpus) if self.num_gpus else 0


def plan_device(requested: str) -> DevicePlan:
    """Chooses the device and sets Triton's mode; call it before triton is imported.

    Does not touch CUDA: the count of GPUs comes from the driver's management library,
    so that ranks can still be forked.

    Raises:
        WorldError: `cuda` was asked for and there is no usable GPU.
    """
    num_gpus, reason = 0, ""
    if requested != "cpu":
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # each rank warns of its transfers
        import torch

        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        reason = why_full() if num_gpus else why_no_gpu()
    if requested == "cuda" and reason:
        raise WorldError(f"--device cuda: no usable GPU was found ({reason})")
    kind = "cpu" if reason or not num_gpus else "cuda"
    _set_triton_mode(interpret=kind == "cpu")
    note = None
    if requested == "auto" and kind == "cpu" and (num_gpus or os.path.exists(_DRIVER)):
        note = f"running on the CPU: {reason}"
    return DevicePlan(kind, num_gpus if kind == "cuda" else 0, note)


def why_full() -> str:
    """The first visible GPU without room for a rank, "" when all have it or nobody knows."""
    for number, free in enumerate(free_memory()):
        if free < LITTLE_MEMORY:
            return (
                f"GPU {number} has only {free >> 20} MiB of its memory free, a rank takes about "
                f"{LITTLE_MEMORY >> 20} MiB"
            )
    return ""


def free_memory() -> list[int]:
    """Bytes free on each visible GPU, by the driver's own tool, which leaves CUDA alone."""
    tool, visible = shutil.which("nvidia-smi"), os.environ.get("CUDA_VISIBLE_DEVICES")
    if tool is None:
        return []
    command = [tool, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    command += ["-i", visible] if visible else []
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return [int(line) << 20 for line in out.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError):  # of a MIG slice it knows nothing
        return []


def why_no_gpu() -> str:
    """The reason as a person would say it."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES is {visible!r}, which hides every GPU"
    if not os.path.exists(_DRIVER) and not os.path.exists("/dev/nvidiactl"):
        return "no NVIDIA driver is loaded"
    if visible is not None:
        return f"CUDA_VISIBLE_DEVICES is {visible!r}, which names no usable GPU"
    return f"the driver does not work with this torch (CUDA {torch.version.cuda})"


def _set_triton_mode(*, interpret: bool) -> None:
    wanted = "1" if interpret else "0"
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET", "0") != wanted:
        raise WorldError(
            "triton was imported in another mode before the device was chosen; "
            f"set TRITON_INTERPRET={wanted} before it is imported"
        )
    os.environ["TRITON_INTERPRET"] = wanted
    if interpret:
        # vLLM switches Triton off without a driver, unless no GPU is visible on purpose.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
