"""The command line's options."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from . import __version__

REPORT_KINDS = ("json", "junit", "markdown", "html", "trace")
COMMANDS = ("run", "list", "validate", "matrix", "vllm", "doctor")
_RUN_HELP = "run scenarios on N pipeline ranks that it launches itself"


def is_rank(args: Sequence[str]) -> bool:
    """Whether torchrun started this process as a rank.

    ``RANK`` alone does not say so: jobs of several nodes set it for all that they run.
    """
    ranked = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    return ranked and not (args and args[0] in COMMANDS)


def build_parser() -> argparse.ArgumentParser:
    """All commands; `torchrun -m ppharness` takes the options of `run`."""
    parser = argparse.ArgumentParser(
        prog="ppharness",
        description="Pipeline-parallel integration harness for LLM inference engines.",
        epilog="The main job: torchrun --nproc-per-node 4 -m ppharness [OPTIONS] [SCENARIO ...]",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ppharness {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    run = commands.add_parser("run", help=_RUN_HELP, allow_abbrev=False)
    run.add_argument(
        "--nproc", type=_count(1, 1024), default=4, metavar="N", help="ranks to launch"
    )
    add_run_options(run)

    commands.add_parser("list", help="scenarios and targets, a line each", allow_abbrev=False)

    validate = commands.add_parser(
        "validate", help="say what is wrong with scenario files", allow_abbrev=False
    )
    validate.add_argument("scenarios", nargs="*", metavar="SCENARIO")

    matrix = commands.add_parser(
        "matrix", help="scenarios x targets, one table", allow_abbrev=False
    )
    matrix.add_argument(
        "--nproc", type=_count(1, 1024), default=4, metavar="N", help="ranks to launch"
    )
    add_run_options(matrix, many_targets=True)

    vllm = commands.add_parser("vllm", help="sources of vLLM releases", allow_abbrev=False)
    actions = vllm.add_subparsers(dest="action", metavar="ACTION", required=True)
    fetch = actions.add_parser("fetch", help="get releases for vllm@VERSION", allow_abbrev=False)
    fetch.add_argument("versions", nargs="+", metavar="VERSION")
    fetch.add_argument("--force", action="store_true", help="get it again")
    fetch.add_argument("--find-links", metavar="PLACE", help="passed on to pip")
    fetch.add_argument("--index-url", metavar="URL", help="passed on to pip")
    actions.add_parser("list", help="what is cached and installed", allow_abbrev=False)

    commands.add_parser("doctor", help="what this machine can run", allow_abbrev=False)
    return parser


class _RankParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Every rank has the same command line; one says what is wrong with it."""
        from .world.processes import say_once

        say_once(message)
        sys.exit(2)


def rank_parser() -> argparse.ArgumentParser:
    """The options of one rank under torchrun."""
    parser = _RankParser(prog="ppharness", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"ppharness {__version__}")
    add_run_options(parser)
    return parser


def add_run_options(parser: argparse.ArgumentParser, *, many_targets: bool = False) -> None:
    """What `run`, `matrix` and a rank under torchrun have in common.

    Args:
        many_targets: for `matrix`, whose table is written as JSON and Markdown only.
    """
    add = parser.add_argument
    add("scenarios", nargs="*", metavar="SCENARIO", help="YAML file, folder or name; default: all")
    add(
        "--target", metavar="T", help="what is tested (see `ppharness list`)",
        **({"action": "append", "required": True} if many_targets else {"default": "builtin"}),
    )  # fmt: skip
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("-k", dest="expression", metavar="EXPR", help="only scenarios whose name matches")
    add("-x", dest="stop_at_first", action="store_true", help="stop after the first failure")
    add("--seed", type=_count(0, 2**31 - 1), default=0, metavar="N")
    add(
        "--timeout", type=_seconds, default=60.0, metavar="S",
        help="longest wait of a rank for another (default: 60 s)",
    )  # fmt: skip
    add("--tp", type=_count(1, 64), default=1, metavar="N", help="tensor-parallel size")
    add("--inject", action="append", default=[], metavar="KIND@RANK:STEP[:PHASE]")
    add("--perturb", type=_count(0, 2**31 - 1), default=None, metavar="SEED")
    add("--check", choices=("each-step", "each-scenario"), default="each-scenario")
    add("--no-ledger", dest="ledger", action="store_false", help="do not compare posts")
    for kind in ("json", "markdown") if many_targets else REPORT_KINDS:
        add(f"--{kind}", type=Path, default=None, metavar="F", help=f"write the result as {kind}")
    add("-q", dest="quiet", action="store_true", help="only failures and the last line")
    add("-v", dest="verbose", action="count", default=0, help="every scenario's figures")


def _count(low: int, high: int):  # type: ignore[no-untyped-def]
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"found {text!r}, allowed: {low} to {high}")
        return value

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed: seconds above 0, up to 86400")
    return value
