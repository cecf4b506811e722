"""The life of one rank's process: join, run the scenarios, report, leave.

Works the same under torchrun and under our own launcher.  Whatever happens, it ends
by ``leave``, and one rank sees to the report.
"""

from __future__ import annotations

import base64
import gc
import os
import pickle
import sys
import threading
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from .findings import CHECKPOINT, PHASES, Finding, RunReport, ScenarioReport
from .injection import parse_injection
from .kernels.interpreter import keep_language_replaced
from .pipeline.faults import Faults
from .pipeline.target_calls import describe_exception
from .restarts import Restarts, troubled_scenario
from .roll_call import RollCall
from .session import RunOptions, new_report, not_run, run_scenario
from .targets.interface import TargetError
from .targets.loading import load_target
from .trouble import Note, exchange, take_turn
from .world.board import Board
from .world.device import DevicePlan
from .world.errors import TransportError, text_of
from .world.flight_record import record_prefix, save_flight_record
from .world.layout import Layout
from .world.processes import say_once
from .world.stacks import offer_stack
from .world.stores import connect_store, this_attempt
from .world.waiting import START_TIMEOUT
from .world.watch import LEFT, Watch
from .world.world import World

Publish = Any  # Callable[[RunReport], int]: shows and writes a report, returns the exit code


class RankProcess:
    """Everything that one rank's process holds."""

    def __init__(self, options: RunOptions, plan: DevicePlan, publish: Publish, progress: Any):
        self.options, self.plan, self.publish, self.progress = options, plan, publish, progress
        self.layout = Layout.from_environment(options.tp_size)
        self.label = self.layout.label(self.layout.rank)
        self.injections = [
            parse_injection(text, world_size=self.layout.world_size, tp_size=options.tp_size)
            for text in options.injections
        ]
        self.world: World | None = None
        self.board: Board | None = None
        self.report: RunReport | None = None
        self.finished: list[ScenarioReport] = []
        self.current = 0  # index of the scenario that runs
        self.partial: list[Finding] = []  # findings of the running scenario on this rank
        self.recorded = False  # what this rank's communicators did lies beside the report
        self._concluded = threading.Lock()
        self.store = connect_store(this_attempt())
        self.restarts = Restarts()
        done = self.restarts.names_done()
        if done:  # the rest of a run whose world was lost
            rest = tuple(s for s in options.scenarios if s.name not in done)
            self.options = replace(options, scenarios=rest)
        self.watch = Watch(
            self.store,
            self.layout.rank,
            timeout=options.timeout,
            on_trouble=self._from_watch,
            on_interrupt=self._interrupted,
        )

    def main(self) -> NoReturn:
        """Runs and ends the process; never returns."""
        self.store.set(f"stack/{self.layout.rank}", offer_stack())
        torch.set_num_threads(1)  # ranks share the cores of one machine
        self.watch.start()
        try:
            self._join()
            code = self._run()
        except TransportError as error:
            self.conclude(str(error), error)
        except SystemExit as leaving:  # the target's doing: this rank is lost to the others
            sys.stderr.write(f"{self.label}: sys.exit({leaving.code!r}) inside the target\n")
            self._leave(leaving.code if isinstance(leaving.code, int) else 1)
        except TargetError as error:
            self._refuse(str(error))
        except BaseException as error:
            self._raised(error)
            self.conclude(f"{type(error).__name__}: {text_of(error)}", error)
        self._leave(code)

    def _raised(self, error: BaseException) -> None:
        """What no guard around the target caught: a target's property, or a fault of ours."""
        seen = self.board.read(self.layout.rank) if self.board else None
        phase = seen.phase if seen and seen.phase in PHASES else None
        self.partial.append(
            Finding(
                kind="exception",
                rank=self.layout.rank,
                label=self.label,
                step=seen.step if seen else None,
                phase=phase,
                message=f"{type(error).__name__}: {text_of(error)}",
                exception=describe_exception(error),
            )
        )

    def _join(self) -> None:
        node = f"board/{os.environ.get('GROUP_RANK', '0')}"
        total = self.layout.world_size
        if "PPHARNESS_BOARD" in os.environ:  # our own launcher made it and outlives us
            self.board = Board.open(os.environ["PPHARNESS_BOARD"], total)
        elif self.layout.local_rank == 0:
            self.board, path = Board.create(total)
            self.store.set(node, path)
        else:
            self._wait_for_key(node)
            self.board = Board.open(self.store.get(node).decode(), total)
        self.board.write(self.layout.rank, None, "start-up")
        self.watch.board = self.board
        self.world = World(
            self.layout, self.plan, connect_store(f"groups/{this_attempt()}"), self.board,
            timeout=self.options.timeout, ledger=self.options.ledger,
            perturb=self.options.perturb,
        )  # fmt: skip

    def _wait_for_key(self, key: str) -> None:
        deadline = time.monotonic() + max(self.options.timeout, START_TIMEOUT)
        while not self.store.check([key]):
            if time.monotonic() > deadline:
                raise TransportError(
                    "the first rank of this host", timed_out=True, detail="start-up"
                )
            time.sleep(0.01)

    def _run(self) -> int:
        """All scenarios in turn; returns the run's exit code."""
        assert self.world is not None
        world, options = self.world, self.options
        world.at(None, "load the target")
        target = load_target(options.target)
        if self.plan.kind == "cpu":
            keep_language_replaced()
        world.meet()
        gc.set_threshold(5_000, 20, 100)  # each interpreted launch leaves a cycle or two
        gc.freeze()  # what was imported stays: no collection looks at it again
        self.report = new_report(options, target, world)
        self.report.notes += [n for n in [world.plan.note] if n]
        self.report.notes += list(getattr(target, "warnings", ()))
        struck = self.restarts.earlier.injections if self.restarts.earlier else {}
        mine = [i for i in self.injections if i.rank == world.rank and not struck.get(i.text)]
        faults = Faults(mine, lambda i: self.store.set(f"fired/{i.text}", "1"))
        reporting = world.rank == 0
        if reporting:
            self.progress.start(len(options.scenarios))
        for number, scenario in enumerate(options.scenarios):
            self.current = number
            if reporting:
                self.progress.scenario_started(scenario.name)
            self.watch_interrupt()
            result = run_scenario(scenario, target, world, options, self.partial, faults)
            self.finished.append(result)
            self.report.trace += result.trace
            if reporting:
                self._checkpoint()
                self.progress.scenario_finished(result)
            bad = result.outcome not in ("passed", "skipped")
            if world.device_lost:
                self._skip_rest(number + 1, "not run: the world was lost to a device fault")
                break
            if world.interrupted or (options.stop_at_first and bad):
                why = "interrupted" if world.interrupted else "stopped after a failure (-x)"
                self._skip_rest(number + 1, f"not run: {why}")
                break
        self.report.interrupted = world.interrupted
        self.report.scenarios = self.finished
        code = [0]
        if reporting:
            self.progress.stop()
            self._count_injections(self.report)
            code = [self.publish(self.restarts.merge(self.report))]
        codes = world.gather(code)
        world.at(None, LEFT)
        self.watch.stop()
        world.close()
        return int(codes[0][0])

    def _checkpoint(self) -> None:
        """What has run so far, for a launcher that no rank is left to report to."""
        if self.report is not None and "PPHARNESS_RESULT" in os.environ:
            self.report.scenarios = self.finished
            self.store.set(CHECKPOINT, base64.b64encode(pickle.dumps(self.report)).decode())

    def watch_interrupt(self) -> None:
        """A Ctrl-C that came before the world was there counts too."""
        if self.world is not None and self.watch.interrupted_at is not None:
            self.world.interrupted = True

    def _interrupted(self) -> None:
        if self.world is not None:
            self.world.interrupted = True

    def _from_watch(self, why: str) -> None:
        self.conclude(why)

    def conclude(self, why: str, error: BaseException | None = None) -> NoReturn:
        """The run cannot go on: notes are exchanged, one rank reports, all leave."""
        if not self._concluded.acquire(blocking=False):
            while True:  # the other thread of this process is at it and ends the process
                time.sleep(1)
        code = 3
        try:
            note = self._note(why, error)
            notes = exchange(self.store, note, self.layout.world_size, self._missing)
            if self.options.report:
                self.recorded = save_flight_record(self.options.report, self.layout.rank)
            if take_turn(self.store, self.layout.rank, sorted(notes)):
                code = self._report_trouble(self._troubled_report(notes, why))
                self.store.set("reported", str(code))
            elif self.store.check(["reported"]):
                code = int(self.store.get("reported"))
        except Exception:
            sys.stderr.write(f"{self.label}: {why}; no report: {traceback.format_exc()}")
        self._leave(code)

    def _report_trouble(self, report: RunReport) -> int:
        """Now, or, where torchrun will start the ranks again, once the rest has run."""
        if self.restarts.left and not report.interrupted and not self.options.stop_at_first:
            self.restarts.save(report)
            return report.exit_code
        return self.publish(self.restarts.merge(report))

    def _missing(self) -> set[int]:
        return self.watch.dead_peers()

    def _roll_call(self) -> RollCall:
        return RollCall(self.layout, self.store, self.board, self._missing())

    def _note(self, why: str, error: BaseException | None) -> Note:
        roll = self._roll_call()
        return Note(
            **asdict(roll.own()),
            rank=self.layout.rank,
            label=self.label,
            why=why,
            stack=stack_of(error) if error else self.watch.main_stack(),
            scenario=self.current,
            raised=error is not None and not isinstance(error, TransportError),
            findings=[asdict(f) for f in self.partial],
            peers=roll.peers(),
        )

    def _troubled_report(self, notes: dict[int, Note], why: str) -> RunReport:
        """The report of a run that did not come to its end."""
        layout, roll = self.layout, self._roll_call()
        for rank in range(layout.world_size):
            if rank not in notes:
                notes[rank] = roll.note_of_silent(rank, self.current, list(notes.values()))
        notes = dict(sorted(notes.items()))
        interrupted = self.watch.interrupted_at is not None and why == "interrupted"
        number = min(max(n.scenario for n in notes.values()), len(self.options.scenarios) - 1)
        scenario = self.options.scenarios[number]
        ended = troubled_scenario(scenario, notes, layout, self.options.seed, interrupted)
        if len(self.finished) <= number:
            self.finished.append(ended)
        else:  # after the last scenario: the fault belongs to it all the same
            self.finished[-1].findings += ended.findings
            self.finished[-1].outcome = ended.outcome
        reason = "interrupted" if interrupted else f"the world was lost in {scenario.name}"
        self._skip_rest(number + 1, f"not run: {reason}")
        report = self.report or bare_report(
            self.options, self.plan, layout.world_size, layout.local_world_size
        )
        report.scenarios, report.interrupted = self.finished, interrupted
        if self.recorded and self.options.report:
            prefix = record_prefix(self.options.report)
            report.notes.append(f"flight record of each rank that answered: {prefix}*")
        self._count_injections(report)
        return report

    def _count_injections(self, report: RunReport) -> None:
        """How often each fault on purpose struck, on whatever rank."""
        report.injections = {
            i.text: int(self.store.check([f"fired/{i.text}"])) for i in self.injections
        }

    def _skip_rest(self, first: int, reason: str) -> None:
        for scenario in self.options.scenarios[first:]:
            self.finished.append(
                not_run(scenario, self.layout.world_size, self.layout.label, reason)
            )

    def _refuse(self, message: str) -> NoReturn:
        """Bad usage that only shows once the ranks are up: said once, nothing is run."""
        say_once(message)
        if self.board is not None:
            self.board.write(self.layout.rank, None, LEFT)
        self._leave(2)

    def _leave(self, code: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def hand_over(report: RunReport) -> int:
    """Under our own launcher, which reports for all: leaves the result in its folder."""
    Path(os.environ["PPHARNESS_RESULT"]).write_bytes(pickle.dumps(report))
    return report.exit_code


def stack_of(error: BaseException) -> str:
    """Where an error was raised, innermost frame last."""
    return "".join(traceback.format_tb(error.__traceback__)[-12:])


def bare_report(
    options: RunOptions, plan: DevicePlan, world_size: int, local_world_size: int
) -> RunReport:
    """The head of a report when the target was never made."""
    from . import __version__

    return RunReport(
        version=__version__,
        target={"name": options.target, "version": None},
        world={
            "pp_size": world_size // options.tp_size,
            "tp_size": options.tp_size,
            "device": plan.kind,
            "backend": plan.backend,
            "ranks_per_gpu": plan.ranks_per_gpu(local_world_size),
            "triton": "interpreter" if plan.kind == "cpu" else "compiled",
        },
        environment={},
    )
