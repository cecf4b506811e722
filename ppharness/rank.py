"""The life of one rank's process: join, run the scenarios, report, leave.

Works the same under torchrun and under our own launcher.  Whatever happens, it ends
by ``leave``, and one rank sees to the report.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import traceback
from dataclasses import asdict, replace
from typing import Any, NoReturn

import torch

from .alike import first_difference, start_terms
from .findings import PHASES, Finding, RunReport
from .injection import parse_injection
from .journal import started_by_run
from .kernels.interpreter import keep_language_replaced
from .pipeline.faults import Faults
from .pipeline.target_calls import describe_exception
from .restarts import Restarts
from .roll_call import RollCall
from .run_record import RunRecord
from .session import RunOptions, new_report, run_scenario
from .targets.interface import TargetError
from .targets.loading import load_target
from .trouble import Note, exchange, take_turn
from .world.board import Board
from .world.device import DevicePlan
from .world.errors import TransportError, text_of
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
        self._concluded = threading.Lock()
        self.store = connect_store(this_attempt())
        self.restarts = Restarts()
        done = self.restarts.names_done()
        if done:  # the rest of a run whose world was lost
            rest = tuple(s for s in options.scenarios if s.name not in done)
            self.options = replace(options, scenarios=rest)
        self.record = RunRecord(self.options, plan, self.layout, self.store)
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
        self.record.partial.append(
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
            self._wait_for([node], "the first rank of this host")
            self.board = Board.open(self.store.get(node).decode(), total)
        self.board.write(self.layout.rank, None, "start-up")
        self.watch.board = self.board
        if not started_by_run():  # else forked from one process
            self._compare_commands()
        self.world = World(
            self.layout, self.plan, connect_store(f"groups/{this_attempt()}"), self.board,
            timeout=self.options.timeout, ledger=self.options.ledger,
            perturb=self.options.perturb,
        )  # fmt: skip

    def _compare_commands(self) -> None:
        """Before any transfer: each node has a command line of its own."""
        total = self.layout.world_size
        keys = [f"terms/{rank}" for rank in range(total)]
        self.store.set(
            keys[self.layout.rank], json.dumps(start_terms(self.options, self.plan.kind))
        )
        self._wait_for(keys, "all ranks to start")
        terms = [json.loads(text) for text in self.store.multi_get(keys)]
        difference = first_difference(terms, [self.layout.label(rank) for rank in range(total)])
        if difference is not None:
            self._refuse(difference)

    def _wait_for(self, keys: list[str], what: str) -> None:
        deadline = time.monotonic() + max(self.options.timeout, START_TIMEOUT)
        while not self.store.check(keys):
            if time.monotonic() > deadline:
                raise TransportError(what, timed_out=True, detail="start-up")
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
        record = self.record
        record.report = new_report(options, target, world)
        struck = self.restarts.earlier.injections if self.restarts.earlier else {}
        mine = [i for i in self.injections if i.rank == world.rank and not struck.get(i.text)]
        faults = Faults(mine, lambda i: self.store.set(f"fired/{i.text}", "1"))
        reporting = world.rank == 0
        if reporting:
            self.progress.start(len(options.scenarios))
        for number, scenario in enumerate(options.scenarios):
            record.current = number
            if reporting:
                self.progress.scenario_started(scenario.name)
            self.watch_interrupt()
            result = run_scenario(scenario, target, world, options, record.partial, faults)
            record.add(result)
            if reporting:
                record.checkpoint()
                self.progress.scenario_finished(result)
            bad = result.outcome not in ("passed", "skipped")
            if world.device_lost:
                record.skip_rest(number + 1, "not run: the world was lost to a device fault")
                break
            if world.interrupted or (options.stop_at_first and bad):
                why = "interrupted" if world.interrupted else "stopped after a failure (-x)"
                record.skip_rest(number + 1, f"not run: {why}")
                break
        code = [0]
        if reporting:
            self.progress.stop()
            report = record.ended(interrupted=world.interrupted)
            code = [self.publish(self.restarts.merge(report))]
        codes = world.gather(code)
        world.at(None, LEFT)
        self.watch.stop()
        world.close()
        return int(codes[0][0])

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
            notes = exchange(self.store, note, self.layout.world_size, self.watch.dead_peers)
            if self.options.report:
                self.record.keep_flight_record(self.options.report)
            if take_turn(self.store, self.layout.rank, sorted(notes)):
                interrupted = self.watch.interrupted_at is not None and why == "interrupted"
                report = self.record.troubled(notes, self._roll_call(), interrupted)
                code = self._report_trouble(report)
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

    def _roll_call(self) -> RollCall:
        return RollCall(self.layout, self.store, self.board, self.watch.dead_peers())

    def _note(self, why: str, error: BaseException | None) -> Note:
        roll = self._roll_call()
        return Note(
            **asdict(roll.own()),
            rank=self.layout.rank,
            label=self.label,
            why=why,
            stack=stack_of(error) if error else self.watch.main_stack(),
            scenario=self.record.current,
            raised=error is not None and not isinstance(error, TransportError),
            findings=[asdict(f) for f in self.record.partial],
            peers=roll.peers(),
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


def stack_of(error: BaseException) -> str:
    """Where an error was raised, innermost frame last."""
    return "".join(traceback.format_tb(error.__traceback__)[-12:])
