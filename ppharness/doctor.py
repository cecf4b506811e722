"""``ppharness doctor``: what this machine can run, and what stands in the way."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass

from .world.device import LITTLE_MEMORY, why_no_gpu


@dataclass(frozen=True)
class Gpu:
    """One GPU that torch sees."""

    name: str
    free: int  # bytes
    total: int  # bytes
    problem: str = ""


def describe_machine() -> str:
    """The whole answer, a line a fact; problems begin with ``problem:``."""
    import torch

    lines = [
        f"ppharness {_version()}, Python {platform.python_version()}, torch {torch.__version__}",
        f"triton: {_triton_version()}",
        f"cores: {os.cpu_count()}",
    ]
    problems: list[str] = []
    gpus = find_gpus(problems)
    lines += [
        f"GPU {n}: {g.name}, {g.free >> 20} of {g.total >> 20} MiB free" for n, g in enumerate(gpus)
    ]
    problems += [f"GPU {n}: {g.problem}" for n, g in enumerate(gpus) if g.problem]
    usable = bool(gpus) and not any(g.problem for g in gpus)
    if usable:
        lines += [
            f"backend: nccl {'.'.join(map(str, _nccl_version()))}, compiled Triton; ranks share "
            f"GPUs when there are more than {len(gpus)}",
        ]
    else:
        lines += [
            f"no GPU is used: {why_no_gpu()}" if not gpus else "a GPU is there, see below",
            "backend: gloo on the CPU, Triton's interpreter",
        ]
    lines += _vllm_lines()
    lines += [f"problem: {p}" for p in problems] or ["no problem was found"]
    return "\n".join(lines)


def find_gpus(problems: list[str]) -> list[Gpu]:
    """The GPUs that torch sees; what keeps others from being seen goes to `problems`."""
    import torch

    there = gpus_by_driver()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None:
        if there:
            problems.append(f"{why_no_gpu()}, but the machine has {there[0]}")
        return []
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except RuntimeError as error:
        problems.append(f"CUDA does not start: {str(error).splitlines()[0]}")
        return []
    if count == 0:
        problems.append(_why_none(there, visible))
        return []
    if visible and len(there) > count and count < len(visible.split(",")):
        problems.append(
            f"CUDA_VISIBLE_DEVICES is {visible!r}, which names a GPU that is not there; "
            f"{count} of the {len(visible.split(','))} named are usable"
        )
    return [_look_at(number) for number in range(count)]


def _why_none(there: list[str], visible: str | None) -> str:
    import torch

    needed = driver_needed(torch.version.cuda or "")
    has = driver_cuda_version()
    if has is not None and needed is not None and has < needed:
        return (
            f"the driver is too old: it supports CUDA {has[0]}.{has[1]}, this torch is built for "
            f"CUDA {torch.version.cuda} and needs a driver for {needed[0]}.{needed[1]} or newer"
        )
    if there and visible is not None:
        named = "hides every GPU" if visible.strip() in ("", "-1") else "names no usable GPU"
        return f"CUDA_VISIBLE_DEVICES is {visible!r}, which {named}; the machine has {there[0]}"
    return why_no_gpu()


def _look_at(number: int) -> Gpu:
    import torch

    try:
        name = torch.cuda.get_device_name(number)
        free, total = torch.cuda.mem_get_info(number)
    except RuntimeError as error:
        what = str(error).splitlines()[0]
        if "out of memory" in what:
            what = f"no free memory: other processes hold it ({what})"
        return Gpu(f"GPU {number}", 0, 0, what)
    problem = ""
    if free < LITTLE_MEMORY:
        problem = (
            f"only {free >> 20} MiB of its memory are free; a rank takes about "
            f"{LITTLE_MEMORY >> 20} MiB"
        )
    elif "MIG" in name:
        problem = "a MIG slice: NCCL cannot connect several slices, use --nproc 1 or whole GPUs"
    return Gpu(name, free, total, problem)


def gpus_by_driver() -> list[str]:
    """Names of the GPUs as ``nvidia-smi -L`` lists them, whatever torch sees."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        out = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.split(":", 1)[1].split("(")[0].strip() for line in out.stdout.splitlines()
            if line.startswith("GPU ") and ":" in line]  # fmt: skip


def driver_cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that the loaded driver supports, None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    value = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(value)) != 0:
        return None
    return value.value // 1000, value.value % 1000 // 10


def driver_needed(cuda: str) -> tuple[int, int] | None:
    """The least CUDA version of a driver for a torch built for `cuda`: the same major one."""
    head = cuda.split(".")[0]
    return (int(head), 0) if head.isdigit() else None


def _nccl_version() -> tuple[int, ...]:
    from .world.gpu_sharing import nccl_version

    return nccl_version()


def _version() -> str:
    from . import __version__

    return __version__


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return "not installed: no kernel can run"
    return str(triton.__version__)


def _vllm_lines() -> list[str]:
    from . import vllm_cache

    lines = []
    installed = vllm_cache.installed()
    if installed is not None:
        lines.append(f"vLLM {installed.version} is installed: --target vllm")
    there = [r.version for r in vllm_cache.cached()]
    if there:
        lines.append(f"cached vLLM releases: {', '.join(there)}: --target vllm@VERSION")
    return lines or ["no vLLM: install it, or `ppharness vllm fetch VERSION`"]
