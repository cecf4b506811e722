"""What the state module's kernels cost on this GPU: ``python -m ppharness.bench``.

Device time is that of one call within a replayed CUDA graph of many, host time that of
a call without one.  Each figure is the median of several rounds, with its spread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

ROWS = (4, 16, 64, 256, 1024, 4096, 8192, 16384, 65536)
_CALLS = 100  # in one graph
_ROUNDS = 15


@dataclass(frozen=True)
class Figure:
    """One way to do it at one size."""

    name: str
    rows: int
    device_us: float
    device_spread: float  # largest less smallest round, over the median
    host_us: float
    host_spread: float
    host_vs_bare: float | None  # median ratio to the bare launch in the same round


def main(argv: list[str] | None = None) -> int:
    """Prints the table, writes the JSON; 1 where a limit is not kept and --strict is given."""
    parser = argparse.ArgumentParser(prog="python -m ppharness.bench", description=__doc__)
    parser.add_argument("--json", help="also write the figures here")
    parser.add_argument("--rows", type=int, nargs="*", default=list(ROWS))
    parser.add_argument("--vllm", default="vllm", help="vllm or vllm@VERSION, where importable")
    parser.add_argument("--strict", action="store_true", help="exit code 1 beyond a limit")
    options = parser.parse_args(argv)
    os.environ["TRITON_INTERPRET"] = "0"
    import torch
    import triton

    if not torch.cuda.is_available():
        from .world.device import why_no_gpu

        sys.stderr.write(f"ppharness.bench: error: it needs a GPU: {why_no_gpu()}\n")
        return 2
    vllm = _vllm_state(options.vllm, max(options.rows))
    figures = [f for rows in options.rows for f in measure(rows, calls_of(rows, vllm))]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(table(figures))
    missed = beyond_limits(figures)
    print("\n".join(f"beyond its limit: {m}" for m in missed) or "all limits are kept")
    if options.json:
        result = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "figures": [asdict(f) for f in figures],
            "beyond_limits": missed,
        }
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)
    return 1 if missed and options.strict else 0


def calls_of(rows: int, vllm: Any) -> dict[str, Callable[[], object]]:
    """What is compared, at one size: a permuted mapping with every tenth row filtered out."""
    import torch

    from .kernels import bench_kernels as bare
    from .kernels.num_accepted import fill_num_accepted, scatter_num_accepted

    torch.manual_seed(rows)
    mapping = torch.randperm(rows, device="cuda").to(torch.int32)
    mapping[::10] = -1
    counts = torch.randint(0, 5, (rows,), device="cuda", dtype=torch.int32)
    buffer = torch.ones(rows, dtype=torch.int32, device="cuda")
    roomy = torch.ones(rows + 1, dtype=torch.int32, device="cuda")  # a spare row for -1

    def slots() -> torch.Tensor:
        wide = mapping.to(torch.int64)
        return torch.where(wide < 0, rows, wide)

    calls: dict[str, Callable[[], object]] = {
        "empty kernel": lambda: bare.empty(mapping),
        "fill": lambda: fill_num_accepted(mapping, buffer, 0),
        "fill, bare launch": lambda: bare.bare_fill(mapping, buffer, rows),
        "fill, a program a row": lambda: bare.fill_by_row(mapping, buffer),
        "fill, torch": lambda: roomy.index_fill_(0, slots(), 1),
        "scatter": lambda: scatter_num_accepted(mapping, buffer, counts),
        "scatter, bare launch": lambda: bare.bare_scatter(mapping, buffer, counts, rows),
        "scatter, a program a row": lambda: bare.scatter_by_row(mapping, buffer, counts),
        "scatter, torch": lambda: roomy.index_copy_(0, slots(), counts.clamp(min=1)),
    }
    if vllm is not None:
        wide = mapping.to(vllm.mapping_dtype)
        calls["fill, vLLM"] = lambda: vllm.postprocess_state(wide, 0)
        calls["scatter, vLLM"] = lambda: vllm.postprocess_state(wide, counts)
    return calls


def measure(rows: int, calls: dict[str, Callable[[], object]]) -> list[Figure]:
    """Device and host time of each way, at one size."""
    host = host_times(calls)
    figures = []
    for name, call in calls.items():
        device, bare = device_times(call), host.get(f"{name}, bare launch")
        ratios = (
            [own / launch for own, launch in zip(host[name], bare, strict=True)] if bare else []
        )
        figures.append(
            Figure(
                name, rows,
                statistics.median(device), _spread(device),
                statistics.median(host[name]), _spread(host[name]),
                statistics.median(ratios) if ratios else None,
            )
        )  # fmt: skip
    return figures


def device_times(call: Callable[[], object], rounds: int = _ROUNDS) -> list[float]:
    """Microseconds a call in a replayed graph, one figure a round; [nan] if it has no graph."""
    import torch

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(_CALLS):
                call()
    except RuntimeError:  # it waits for the device, so it cannot be captured
        return [float("nan")]
    out = []
    for number in range(rounds + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(5):
            graph.replay()
        end.record()
        end.synchronize()
        if number >= 2:
            out.append(start.elapsed_time(end) * 1000 / (5 * _CALLS))
    return out


def host_times(
    calls: dict[str, Callable[[], object]], rounds: int = _ROUNDS
) -> dict[str, list[float]]:
    """Microseconds that each call takes on the host, one figure a round.

    All are timed in every round, since a processor's speed changes over time.
    """
    import torch

    out: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 2):
        for name, call in calls.items():
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(200):
                call()
            spent = time.perf_counter() - started
            if number >= 2:
                out[name].append(spent * 1e6 / 200)
    return out


def _spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)


def table(figures: list[Figure]) -> str:
    """A line a size and way."""
    lines = [f"{'rows':>6}  {'':<26}{'device us':>10}{'spread':>8}{'host us':>9}{'spread':>8}"]
    for f in figures:
        lines.append(
            f"{f.rows:>6}  {f.name:<26}{f.device_us:>10.2f}{f.device_spread:>8.0%}"
            f"{f.host_us:>9.2f}{f.host_spread:>8.0%}"
        )
    return "\n".join(lines)


def beyond_limits(figures: list[Figure]) -> list[str]:
    """The limits on fill and scatter that these figures do not keep; 3 % is noise."""
    by = {(f.name, f.rows): f for f in figures}
    out = []
    for rows in sorted({f.rows for f in figures}):
        empty = by["empty kernel", rows].device_us
        for kind in ("fill", "scatter"):
            ours = by[kind, rows]
            limits = [
                (f"{kind}, a program a row", 1.03 * by[f"{kind}, a program a row", rows].device_us),
                ("a third of torch", by[f"{kind}, torch", rows].device_us / 3),
            ]
            if rows <= 1024:
                limits.append(("1.5 empty kernels", 1.5 * empty))
            elif rows == 65536:
                limits.append(("3.5 empty kernels", 3.5 * empty))
            out += [
                f"{kind}, {rows} rows: {ours.device_us:.2f} us on the device, {what}: {limit:.2f}"
                for what, limit in limits
                if ours.device_us > limit
            ]
            if ours.host_vs_bare is not None and ours.host_vs_bare > 1.1:
                out.append(
                    f"{kind}, {rows} rows: {ours.host_us:.1f} us on the host, "
                    f"{ours.host_vs_bare:.2f} times the bare launch"
                )
    return out


def _vllm_state(name: str, rows: int) -> Any:
    """The state module of a vLLM release, None where there is none."""
    import torch

    from .targets.interface import TargetConfig
    from .targets.loading import load_target

    try:
        target = load_target(name.replace("vllm", "vllm-state", 1))
        config = TargetConfig(
            max_num_reqs=rows, max_num_batched_tokens=rows, max_model_len=rows,
            num_speculative_tokens=0, mamba_cache_mode="none", mamba_block_size=16, pp_size=1,
            pp_rank=0, relay_depth=1, device=torch.device("cuda", torch.cuda.current_device()),
        )  # fmt: skip
        state: Any = target.make_mamba_state(config)
        state.mapping_dtype = target.idx_mapping_dtype()
        state.postprocess_state(torch.zeros(1, dtype=state.mapping_dtype, device="cuda"), 0)
    except Exception as error:
        sys.stderr.write(f"ppharness.bench: without vLLM: {str(error).splitlines()[0][:200]}\n")
        return None
    return state


if __name__ == "__main__":
    sys.exit(main())
