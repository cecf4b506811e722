"""How long the main job takes, as ratios to a bare torchrun in the same run.

    python scripts/bench_launch.py [--repeat 5]

Baseline: ``torchrun --nproc-per-node 4`` of a script that imports torch and triton,
joins gloo and ends.  Medians; also steps a second of a warm world, and its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARE = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""
SCENARIO = """
name: {name}
max_num_reqs: 8
requests:
{requests}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10_000, help="of the memory run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
        own = [sys.executable, "-m", "ppharness", "run", "--nproc", "4", "-q"]
        times = {
            "bare torchrun": [*torchrun, str(bare)],
            "ppharness run": own,
            "torchrun -m ppharness": [*torchrun, "-m", "ppharness", "-q"],
        }
        medians = {name: median(command, options.repeat) for name, command in times.items()}
        base = medians["bare torchrun"]
        print(f"{'command':<24}{'median s':>9}{'ratio':>7}  (of {options.repeat})")
        for name, seconds in medians.items():
            print(f"{name:<24}{seconds:>9.2f}{seconds / base:>7.2f}")
        warm_world(own, Path(folder), options.repeat)
        memory(own, Path(folder), options.steps)


def median(command: list[str], repeat: int) -> float:
    """Median wall time of a command that must succeed."""
    times = []
    for _ in range(repeat):
        started = time.monotonic()
        subprocess.run(command, check=True, capture_output=True, env=environment())
        times.append(time.monotonic() - started)
    return statistics.median(times)


def write_scenario(folder: Path, name: str, steps: int) -> Path:
    """8 requests on a pipeline of 4, where each decodes every 4th step."""
    requests = "\n".join(
        f"  - {{id: r{n}, prompt_tokens: {8 + n}, max_tokens: {steps // 4}}}" for n in range(8)
    )
    scenario = folder / f"{name}.yaml"
    scenario.write_text(SCENARIO.format(name=name, requests=requests))
    return scenario


def warm_world(command: list[str], folder: Path, repeat: int) -> None:
    """Steps a second of a scenario in a world that has run another one before."""
    scenarios = [write_scenario(folder, "first", 40), write_scenario(folder, "warm", 400)]
    result, rates = folder / "result.json", []
    for _ in range(repeat):
        subprocess.run(
            [*command, *map(str, scenarios), "--json", str(result)],
            check=True, capture_output=True, env=environment(),
        )  # fmt: skip
        report = json.loads(result.read_text())["scenarios"][1]
        rates.append(report["steps"] / report["seconds"])
    print(
        f"warm world: {report['steps']} steps, {statistics.median(rates):.0f} steps/s "
        f"({min(rates):.0f} to {max(rates):.0f})"
    )


def memory(command: list[str], folder: Path, steps: int) -> None:
    """The ranks' memory in one long scenario."""
    scenario, result = write_scenario(folder, "long", steps), folder / "result.json"
    with subprocess.Popen(
        [*command, str(scenario), "--json", str(result)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
    ) as process:  # fmt: skip
        samples = watch_memory(process)
    (report,) = json.loads(result.read_text())["scenarios"]
    early, late = samples[len(samples) // 10], samples[-1]
    print(
        f"memory: {report['steps']} steps, {report['steps'] / report['seconds']:.0f} steps/s, "
        f"largest rank {early:.0f} MB resident after a tenth, {late:.0f} MB at the end"
    )


def watch_memory(process: subprocess.Popen[bytes]) -> list[float]:
    """Resident memory of the largest rank, MB, twice a second until the end."""
    import psutil

    samples = [0.0]
    while process.poll() is None:
        try:
            ranks = psutil.Process(process.pid).children(recursive=True)
            samples.append(max((r.memory_info().rss for r in ranks), default=0) / 1e6)
        except psutil.Error:
            pass
        time.sleep(0.5)
    return [s for s in samples if s] or [0.0]


def environment() -> dict[str, str]:
    """Without what a launcher around this script may have set."""
    return {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}


if __name__ == "__main__":
    main()
