"""Runs all that needs a GPU and sums it up; see gpu_check.sh.

Each part is a command with a time limit of its own, so a part that fails or hangs is a
line in the table and nothing more.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RANKS = (1, 2, 4, 8)
TARGETS = ("builtin", "index-fill", "index-fill-int64")
SEEDS = 10
RACES = ("ForgetsWaitStream", "ForgetsRecordStream", "ForgetsEvent")
RACE_FILE = "tests/targets/gpu_races.py"
SCENARIOS = ("founding-case-long", "configs/more/multi-turn.yaml")  # for the perturbed runs


class Check:
    """Rows of the summary, and the folder of the files."""

    def __init__(self, out: Path):
        self.out = out
        self.rows: list[dict[str, Any]] = []
        self.details: dict[str, Any] = {}

    def add(self, part: str, good: bool, text: str) -> None:
        self.rows.append({"part": part, "ok": good, "text": text})
        print(f"{'ok  ' if good else 'FAIL'} {part}: {text}", flush=True)

    def run(self, name: str, args: list[str], limit: float = 120) -> tuple[int, str, float]:
        """Exit code (124 past the limit), output, seconds; the output is also kept."""
        started = time.monotonic()
        process = subprocess.Popen(
            args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=limit)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            code = 124
        with open(self.out / "log.txt", "a") as log:
            log.write(f"\n===== {name}: {' '.join(args)} -> {code}\n{output[-6000:]}\n")
        return code, output, time.monotonic() - started

    def harness(self, name: str, *args: str, limit: float = 120) -> tuple[int, dict[str, Any]]:
        """``ppharness run`` with its JSON."""
        result = self.out / "runs" / f"{name}.json"
        result.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "ppharness", "run", "-q", "--timeout", "20"]
        code, _, _ = self.run(name, [*command, "--json", str(result), *args], limit)
        return code, json.loads(result.read_text()) if result.exists() else {}


def verdicts(report: dict[str, Any]) -> dict[str, Any]:
    """What must be the same on any device."""
    return {
        s["name"]: (s["outcome"], [r["outcome"] for r in s["ranks"]])
        for s in report.get("scenarios", [])
    }


def suites(check: Check) -> None:
    """The default suite of each target and size, with the CPU's verdicts beside it."""
    cases = [(t, n) for t in TARGETS for n in RANKS]
    with ThreadPoolExecutor(2) as pool:
        cpu = {
            (t, n): pool.submit(
                check.harness, f"cpu-{t}-{n}", "--device", "cpu", "--nproc", str(n), "--target", t
            )
            for t, n in cases
        }
        for t, n in cases:
            started = time.monotonic()
            code, report = check.harness(f"gpu-{t}-{n}", "--nproc", str(n), "--target", t)
            spent = time.monotonic() - started
            want, got = verdicts(cpu[t, n].result()[1]), verdicts(report)
            other = [k for k in want if want[k] != got.get(k)]
            world = report.get("world", {})
            check.add(
                f"suite {t}, {n} ranks", bool(want) and not other,
                f"exit {code}, {len(want) - len(other)} of {len(want)} verdicts as on the CPU, "
                f"{world.get('device')}/{world.get('backend')}, ranks_per_gpu "
                f"{world.get('ranks_per_gpu')}, {spent:.1f} s{'; other: ' if other else ''}"
                + ", ".join(f"{k} {got.get(k, ['not run'])[0]}" for k in other[:5]),
            )  # fmt: skip


def tests(check: Check) -> None:
    """The tests marked `gpu`."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests"]
    code, output, _ = check.run("tests", command, 240)
    check.add("gpu-marked tests", code == 0, (output.strip().splitlines() or ["no output"])[-1])


def perturbed(check: Check) -> None:
    """The right target is never blamed, each forgotten wait in nine seeds of ten."""
    targets = {"builtin": "builtin", **{r: f"{RACE_FILE}:{r}" for r in RACES}}

    def one(case: tuple[str, int]) -> bool:
        name, seed = case
        code, report = check.harness(
            f"perturb-{name}-{seed}", "--nproc", "4", "--perturb", str(seed),
            "--target", targets[name], *SCENARIOS,
        )  # fmt: skip
        return code in (1, 3) if report else name == "builtin"

    cases = [(name, seed) for name in targets for seed in range(SEEDS)]
    with ThreadPoolExecutor(4) as pool:
        caught = dict(zip(cases, pool.map(one, cases), strict=True))
    for name in targets:
        hits = sum(caught[name, seed] for seed in range(SEEDS))
        good = hits == 0 if name == "builtin" else hits >= 0.9 * SEEDS
        check.add(f"--perturb, {name}", good, f"blamed in {hits} of {SEEDS} seeds")


def faults(check: Check) -> None:
    """A device fault names its rank and step; a store before the buffer hits a canary."""
    for name, label in (("DeviceFault", "PP0"), ("DeviceFaultOnLastStage", "PP3")):
        for mode in ("each-step", "each-scenario"):
            code, report = check.harness(
                f"fault-{label}-{mode}", "--nproc", "4", "--check", mode,
                "--target", f"{RACE_FILE}:{name}", "founding-case",
            )  # fmt: skip
            found = [f for s in report.get("scenarios", []) for f in s["findings"]]
            named = [f"{f['label']} step {f['step']} {f['phase']}" for f in found]
            good = code == 1 and bool(found) and {f["label"] for f in found} == {label}
            check.add(f"device fault on {label}, {mode}", good, f"exit {code}: {named[:3]}")
    code, report = check.harness(
        "canary", "--nproc", "2", "--target", f"{RACE_FILE}:StoresBeforeBuffer", "founding-case"
    )
    found = [f for s in report.get("scenarios", []) for f in s["findings"]]
    kinds = sorted({f["kind"] for f in found})
    check.add("store at a negative offset", kinds == ["stray_write"], f"exit {code}: {kinds}")


def bench(check: Check) -> None:
    """Kernels at their limits."""
    path = check.out / "bench.json"
    name = "vllm@0.28.0"
    command = [sys.executable, "-m", "ppharness.bench", "--json", str(path), "--vllm", name]
    code, output, _ = check.run("bench", command, 200)
    print(output)
    result = json.loads(path.read_text()) if path.exists() else {}
    missed = result.get("beyond_limits", ["no figures"])
    check.details["bench"] = result
    check.add("kernels", code == 0 and not missed, "; ".join(missed) or "all limits are kept")


def steps(check: Check) -> None:
    """A step of the harness beside a bare loop with the same transfers.

    Ranks that share a GPU take turns on it, a time slice each, unless NVIDIA's MPS runs:
    so the same is measured once more with an MPS of our own.
    """
    one_world(check, "taking turns")
    if shutil.which("nvidia-cuda-mps-control"):
        with own_mps():
            one_world(check, "under MPS")


def one_world(check: Check, how: str) -> None:
    """Four ranks on this machine's GPUs."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4",
        "scripts/bench_steps.py", "--steps", "100", "--rounds", "5",
    ]  # fmt: skip
    code, output, _ = check.run(f"steps {how}", command, 150)
    print(output)
    figures = {
        name: line[len(name) :].split()
        for line in output.splitlines()
        for name in ("harness  ", "checks, recorded on the device: ")
        if line.startswith(name)
    }
    check.details[f"steps {how}"] = output
    if code or len(figures) < 2:
        check.add(f"step, {how}", False, f"exit {code}")
        return
    (own, *_, ratio), (share, *_) = figures.values()
    text = f"harness {own} us: {ratio} times the faster bare loop (limit 1.25)"
    check.add(f"step, {how}", float(ratio) <= 1.25, text)
    check.add(f"checks, {how}", float(share) <= 5, f"{share} % of a step (limit 5)")


@contextlib.contextmanager
def own_mps() -> Iterator[None]:
    """NVIDIA's Multi-Process Service for what runs meanwhile, in folders of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("PIPE", "LOG"):
            os.environ[f"CUDA_MPS_{kind}_DIRECTORY"] = folder
        control = "nvidia-cuda-mps-control"
        subprocess.run([control, "-d"], check=True, timeout=30)
        try:
            yield
        finally:
            subprocess.run([control], input="quit\n", text=True, timeout=60)
            for kind in ("PIPE", "LOG"):
                del os.environ[f"CUDA_MPS_{kind}_DIRECTORY"]


def vllm(check: Check) -> None:
    """Real releases, where they are cached."""
    from ppharness.vllm_cache import cached

    there = {r.version for r in cached()}
    for version, wanted in (("0.26.0", "crashed"), ("0.28.0", "passed")):
        if version not in there:
            check.add(f"vLLM {version}", True, "not cached: not run")
            continue
        code, report = check.harness(
            f"vllm-{version}", "--nproc", "4", "--target", f"vllm@{version}", "founding-case",
            limit=180,
        )  # fmt: skip
        outcome = report.get("outcome")
        check.add(f"vLLM {version}", outcome == wanted, f"exit {code}: {outcome}, want {wanted}")


PARTS = {
    "suites": suites, "tests": tests, "perturb": perturbed, "faults": faults,
    "bench": bench, "steps": steps, "vllm": vllm,
}  # fmt: skip


def main() -> int:
    """Runs the named parts, or all."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "gpu-check").absolute()
    out.mkdir(parents=True, exist_ok=True)
    check = Check(out)
    code, output, _ = check.run("doctor", [sys.executable, "-m", "ppharness", "doctor"])
    print(output)
    check.add("doctor", code == 0 and "problem:" not in output, output.splitlines()[0])
    for name in sys.argv[2:] or PARTS:
        try:
            PARTS[name](check)
        except Exception as error:
            check.add(name, False, f"{type(error).__name__}: {error}")
    summary = {"doctor": output, "rows": check.rows, **check.details}
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    width = max(len(row["part"]) for row in check.rows)
    print("\nsummary")
    for row in check.rows:
        print(f"{'ok  ' if row['ok'] else 'FAIL'}  {row['part']:<{width}}  {row['text']}")
    return 0 if all(row["ok"] for row in check.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
