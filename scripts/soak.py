"""Random scenarios with random faults, for as long as it is told; prints the tallies.

    python scripts/soak.py --minutes 60 [--seed 0]

For each run: the exit code must be right, the culprit the rank that was hit, the report
complete, no process left, no file left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import yaml

# kind -> exit codes that are right when it struck
FAULTS: dict[str, set[int]] = {
    "raise": {1}, "kill": {3}, "segv": {3}, "exit0": {3}, "stall": {3}, "slow": {0},
    "skip-broadcast": {1}, "corrupt-slot": {1}, "corrupt-hidden": {1},
    "corrupt-counts": {1}, "drift": {1},
}  # fmt: skip
CULPRIT_KINDS = {"kill": "lost_rank", "segv": "lost_rank", "exit0": "lost_rank", "stall": "hang",
                 "raise": "exception"}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=10, help="of the ranks, seconds")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    tally: Counter[str] = Counter()
    before = set(os.listdir(tempfile.gettempdir())) | set(os.listdir("/dev/shm"))
    memory = [psutil.virtual_memory().available]
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            one_run(rng, Path(folder), options.timeout, tally)
        memory.append(psutil.virtual_memory().available)
        sys.stderr.write(f"\r{dict(tally)}")
        sys.stderr.flush()
    after = set(os.listdir(tempfile.gettempdir())) | set(os.listdir("/dev/shm"))
    left = sorted(name for name in after - before if "ppharness" in name or "errorfile" in name)
    print()
    for name, count in sorted(tally.items()):
        print(f"{name:<28}{count:>7}")
    print(f"{'wrong verdicts':<28}{tally['WRONG']:>7}")
    print(f"{'orphans':<28}{tally['ORPHAN']:>7}")
    print(f"{'files left':<28}{len(left):>7} {' '.join(left[:5])}")
    print(f"GB of memory available: {memory[0] / 1e9:.2f} at first, {memory[-1] / 1e9:.2f} at last")
    return int(bool(tally["WRONG"] or tally["ORPHAN"] or left))


def one_run(rng: random.Random, folder: Path, timeout: float, tally: Counter[str]) -> None:
    """A scenario, perhaps a fault, and what must come of it."""
    nproc = rng.choice((1, 2, 3, 4))
    scenario = random_scenario(rng)
    (folder / "soak.yaml").write_text(yaml.safe_dump(scenario, sort_keys=False))
    command = [
        sys.executable, "-m", "ppharness", "run", "-q", "--nproc", str(nproc),
        "--timeout", str(timeout), "--seed", str(rng.randrange(1000)), "--json", "r.json",
        "soak.yaml",
    ]  # fmt: skip
    kind = rank = None
    if rng.random() < 0.7:
        kind, rank = rng.choice(list(FAULTS)), rng.randrange(nproc)
        command += ["--inject", f"{kind}@{rank}:{rng.randrange(12)}"]
    elif rng.random() < 0.3:
        command += ["--perturb", str(rng.randrange(1000))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    tally["runs"] += 1
    tally[f"fault {kind}" if kind else "no fault"] += 1
    problem = judge(folder / "r.json", done.returncode, kind, rank, nproc, tally)
    if problem:
        tally["WRONG"] += 1
        sys.stderr.write(f"\nWRONG: {problem}\n{' '.join(command)}\n{yaml.safe_dump(scenario)}\n")
        sys.stderr.write(done.stdout[-3000:] + done.stderr[-3000:])
    for process in left_in(folder):
        tally["ORPHAN"] += 1
        process.kill()


def judge(
    file: Path, code: int, kind: str | None, rank: int | None, nproc: int, tally: Counter[str]
) -> str | None:
    """What is wrong with the result of a run, None when nothing is."""
    try:
        report: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        return f"no report: {error}"
    if report["exit_code"] != code:
        return f"exit code {code}, the report says {report['exit_code']}"
    (scenario,) = report["scenarios"]
    if len(scenario["ranks"]) != nproc:
        return "a rank is missing from the report"
    struck = any(report["injections"].values())
    if kind is None:
        return None if code == 0 else f"exit code {code} without a fault"
    if not struck:
        tally["fault that never struck"] += 1
        return None if code == 2 else f"exit code {code} for a fault that never struck"
    if code not in FAULTS[kind] and not (nproc == 1 and code == 0):
        return f"exit code {code} after {kind}"
    if scenario["findings"]:
        first = scenario["findings"][0]
        if first["rank"] != rank:
            return f"{first['label']} named first, rank {rank} was hit"
        if kind in CULPRIT_KINDS and first["kind"] != CULPRIT_KINDS[kind]:
            return f"{first['kind']} after {kind}"
    return None


def random_scenario(rng: random.Random) -> dict[str, Any]:
    """Any scenario that a right target must pass."""
    k = rng.choice((0, 0, 1, 3))
    names = [f"r{n}" for n in range(rng.randint(1, 6))]
    requests = [
        {
            "id": name,
            "prompt_tokens": rng.choice((1, 3, 7, 20, 70, 200)),
            "max_tokens": rng.randint(1, 12),
            "arrive_at": rng.randint(0, 8),
            **({"accept": [rng.randint(0, k) for _ in range(3)]} if k else {}),
        }
        for name in names
    ]
    events: list[dict[str, Any]] = []
    for _ in range(rng.randint(0, 3)):
        event: dict[str, Any] = {"step": rng.randint(1, 15)}
        if rng.random() < 0.5:
            event["preempt"] = rng.choice(names)
        else:
            event["abort"] = rng.choice(names)
            event["in_flight"] = rng.random() < 0.5
        events.append(event)
    return {
        "name": "soak",
        "max_num_reqs": rng.choice((1, 2, 4, 8)),
        "max_num_batched_tokens": rng.choice((2, 8, 32, 64)),
        "num_speculative_tokens": k,
        "schedule": rng.choice(("async", "async", "sync")),
        "mamba_cache_mode": rng.choice(("none", "none", "align")),
        "mamba_block_size": rng.choice((4, 8, 16)),
        "idx_mapping_dtype": rng.choice(("int32", "int64")),
        "requests": requests,
        "events": events,
    }


def left_in(folder: Path) -> list[psutil.Process]:
    """Processes that still run in a folder three seconds after the run."""
    deadline = time.monotonic() + 3
    while True:
        found = []
        for process in psutil.process_iter():
            try:
                if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
