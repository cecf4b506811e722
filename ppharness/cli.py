"""Commands and what they do; nothing here imports torch before it must."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .arguments import build_parser, is_rank, rank_parser
from .request import (
    chosen_scenarios,
    report_files,
    reproduce_command,
    run_options,
    show_and_write,
)
from .scenario.catalog import UsageError, resolve
from .scenario.lengths import check_lengths
from .scenario.reading import ScenarioError

if TYPE_CHECKING:
    from .findings import RunReport

TARGETS = {
    "builtin": "the built-in state module, relay and slots",
    "index-fill": "the scalar branch before the fix (vLLM 0.24.0 to 0.27.1): raises on int32",
    "index-fill-int64": "the tempting wrong fix: -1 wraps round to the last slot",
    "vllm": "the installed vLLM; vllm@VERSION takes a cached release",
    "vllm-state": "only the state module of vLLM, driven by the built-in relay",
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if is_rank(args):
        return _guarded(lambda: _rank(rank_parser().parse_args(args)), args)
    for name in ("RANK", "WORLD_SIZE"):  # of a job around this command, which is no rank
        os.environ.pop(name, None)
    parser = build_parser()
    options = parser.parse_args(args)
    commands = {
        "run": _run, "list": _list, "validate": _validate, "doctor": _doctor,
        "matrix": _matrix, "vllm": _vllm,
    }  # fmt: skip
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    return _guarded(lambda: commands[options.command](options), args)


def _guarded(command: Any, args: list[str]) -> int:
    """Errors meant for the user: one message each, exit code 2, no traceback."""
    try:
        return int(command())
    except (ScenarioError, UsageError, ValueError) as error:
        if type(error).__module__.split(".")[0] != "ppharness":
            raise
        from .world.processes import say_once

        say_once(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _list(options: argparse.Namespace) -> int:
    scenarios, more = resolve(()), resolve(("more",))
    width = max(len(name) for name in [*TARGETS, *(s.name for s in [*scenarios, *more])])
    lines = ["scenarios:"]
    lines += [f"  {s.name:<{width}}  {' '.join(s.description.split())}" for s in scenarios]
    lines += ["more scenarios (run by name, or all of them as `more`):"]
    lines += [f"  {s.name:<{width}}  {' '.join(s.description.split())}" for s in more]
    lines += ["targets:"]
    lines += [f"  {name:<{width}}  {text}" for name, text in TARGETS.items()]
    lines += [f"  {'MODULE:CLASS':<{width}}  a class of your own; FILE.py:CLASS likewise"]
    print("\n".join(lines))
    return 0


def _validate(options: argparse.Namespace) -> int:
    scenarios = resolve(options.scenarios)
    check_lengths(scenarios)
    print(f"{len(scenarios)} scenarios are valid")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from .doctor import describe_machine

    print(describe_machine())
    return 0


def _matrix(options: argparse.Namespace) -> int:
    from .injection import parse_injection
    from .matrix import run_matrix

    chosen_scenarios(options, options.nproc)  # what is bad is said once, before anything runs
    for text in options.inject:
        parse_injection(text, world_size=options.nproc, tp_size=options.tp)
    return run_matrix(options, options.scenarios, report_files(options))


def _vllm(options: argparse.Namespace) -> int:
    from . import vllm_cache

    if options.action == "list":
        lines = [f"{r.version:<12} cached" for r in vllm_cache.cached()]
        installed = vllm_cache.installed()
        lines += [f"{installed.version:<12} installed"] if installed else []
        print("\n".join(lines) or "no release is cached, and vLLM is not installed")
        return 0
    pip_args = [f"--find-links={options.find_links}"] if options.find_links else []
    pip_args += [f"--index-url={options.index_url}"] if options.index_url else []
    for version in options.versions:
        result = vllm_cache.fetch(
            version, pip_args=pip_args, force=options.force,
            say=lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
        print(result.summary())
    return 0


def _run(options: argparse.Namespace) -> int:
    from .launcher import launch

    scenarios = chosen_scenarios(options, options.nproc)
    files = report_files(options)
    return launch(options, scenarios, files)


def _rank(options: argparse.Namespace) -> int:
    """One rank under torchrun."""
    num_ranks = int(os.environ["WORLD_SIZE"])
    scenarios = chosen_scenarios(options, num_ranks)
    files = report_files(options)
    from .report.progress import RunProgress
    from .world.device import plan_device

    plan = plan_device(options.device)
    from .injection import parse_injection
    from .rank import RankProcess

    for text in options.inject:
        parse_injection(text, world_size=num_ranks, tp_size=options.tp)

    def publish(report: RunReport) -> int:
        report.reproduce = reproduce_command(options, num_ranks)
        return show_and_write(report, options, files)

    progress = RunProgress(quiet=options.quiet)
    RankProcess(run_options(options, scenarios, plan.kind), plan, publish, progress).main()
