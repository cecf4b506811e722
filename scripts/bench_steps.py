"""What a step of the harness costs, beside a bare loop with the same transfers.

    torchrun --nproc-per-node 4 scripts/bench_steps.py [--device cpu] [--steps 400]

Loops in one world, interleaved: bare (receive, send, two broadcasts), the harness, the
harness with ``--no-ledger``, and without its checks.  Medians of the rounds, as ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

from ppharness.world.device import plan_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    plan = plan_device(options.device)
    run(options, plan)


def run(options: argparse.Namespace, plan: object) -> None:
    """Joins the world by hand and times the loops in turn."""
    import torch
    import torch.distributed as dist

    from ppharness.pipeline.faults import Faults
    from ppharness.pipeline.runner import RankRunner
    from ppharness.scenario.model import Request, Scenario
    from ppharness.targets.builtin import BuiltinTarget
    from ppharness.world.board import Board
    from ppharness.world.layout import Layout
    from ppharness.world.world import World

    torch.set_num_threads(1)
    layout = Layout.from_environment(1)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if layout.local_rank == 0:
        board, path = Board.create(layout.world_size)
        store.set("bench/board", path)
    else:
        board = Board.open(store.get("bench/board").decode(), layout.world_size)
    board.write(layout.rank, None, "start-up")
    world = World(layout, plan, dist.PrefixStore("bench", store), board, timeout=60)
    pp = layout.world_size
    scenario = Scenario(  # two prompts fill a step, so that a batch of two is on every stage
        name="bench",
        max_num_batched_tokens=16,
        requests=tuple(
            Request(id=f"r{n}", prompt_tokens=8, max_tokens=options.steps // pp) for n in range(8)
        ),
    )

    def harness(ledger: bool = True, judged: bool = True, checks: bool = True) -> float:
        world.ledger.compared = ledger
        runner = RankRunner(
            scenario, BuiltinTarget(), world, [], Faults([], lambda i: None),
            seed=0, judge_each_step=plan.kind == "cpu",
        )  # fmt: skip
        if not judged:  # what is left of the checks is what they cost the device
            runner.checks.judge = runner.checks.discard  # type: ignore[method-assign]
        if not checks:
            runner.checks.record = lambda *args, **kwargs: None  # type: ignore[method-assign]
        dist.barrier()
        started = time.perf_counter()
        runner.run()
        if plan.kind == "cuda":
            torch.cuda.synchronize()
        assert not runner.checks.findings
        return (time.perf_counter() - started) / runner.steps_run

    def bare(paced: bool = True) -> float:
        steps = options.steps if paced else max(1, options.steps // 10)
        hidden = torch.zeros(2, 4, dtype=torch.int64, device=world.device)
        tokens = torch.zeros(2, 1, dtype=torch.int64, device=world.device)
        counts = torch.zeros(2, 2, dtype=torch.int32, device=world.device)
        channel = world.relay_channel
        dist.barrier()
        started = time.perf_counter()
        for _ in range(steps):
            if world.pp_rank:
                world.recv_hidden(hidden)
            if world.pp_rank < pp - 1:
                world.send_hidden(hidden)
            works = [
                dist.broadcast(t, channel.last_rank, channel.group, async_op=True)
                for t in (tokens, counts)
            ]
            for work in works:
                work.wait()
            if plan.kind == "cuda" and paced:  # ranks that share a GPU take turns in long queues
                torch.cuda.current_stream().synchronize()
        if plan.kind == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        return (time.perf_counter() - started) / steps

    loops = {
        "bare loop": bare,
        "harness": harness,
        "harness --no-ledger": lambda: harness(ledger=False),
        "harness, not judged": lambda: harness(judged=False),
        "harness, no checks": lambda: harness(judged=False, checks=False),
    }
    if plan.kind == "cuda":  # the faster of the two is the one to beat
        loops["bare loop, no waiting between steps"] = lambda: bare(paced=False)
    times: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(options.rounds + 1):  # the first round warms up
        for name, loop in loops.items():
            times[name].append(loop())
    if layout.rank == 0:
        medians = {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
        base = min(seconds for name, seconds in medians.items() if name.startswith("bare"))
        print(f"{pp} ranks, {world.device.type}, {options.steps} steps, {options.rounds} rounds")
        for name, seconds in medians.items():
            print(f"{name:<36}{seconds * 1e6:>10.0f} us a step{seconds / base:>8.2f}")
        for what, whole, without in (
            ("comparison of the ledgers", "harness", "harness --no-ledger"),
            ("checks, recorded on the device", "harness, not judged", "harness, no checks"),
            ("checks, judged on the host", "harness", "harness, not judged"),
        ):
            share = 1 - medians[without] / medians[whole]
            print(f"{what}: {100 * share:.1f} % of a step")
    world.close()


if __name__ == "__main__":
    main()
