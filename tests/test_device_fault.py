"""Where a rank asks whether its GPU broke, and where it must not; no GPU is needed."""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta
from typing import Any

import pytest
import torch

from ppharness.pipeline.checks import CheckList
from ppharness.pipeline.faults import Faults
from ppharness.pipeline.target_calls import TargetCalls
from ppharness.world import waiting
from ppharness.world.device import DevicePlan
from ppharness.world.errors import TransportError
from ppharness.world.ledger import Ledger
from ppharness.world.world import World

FAULT = RuntimeError("CUDA error: device-side assert triggered")


class Work:
    """A transfer that is done, or fails."""

    def __init__(self, error: Exception | None = None):
        self.error = error

    def wait(self, timeout: timedelta | None = None) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A rank on a GPU that broke, as far as ``wait`` looks."""

    def broken(device: torch.device) -> None:
        raise FAULT

    monkeypatch.setattr(waiting, "raise_if_broken", broken)
    monkeypatch.setattr(World, "_say", lambda self, waiting: None)
    rank: Any = World.__new__(World)
    rank.plan, rank.device = DevicePlan("cuda", num_gpus=1), torch.device("cuda")
    rank.timeout, rank.delay, rank.device_lost = 5.0, 0.0, False
    rank._random, rank._agreeing = None, Work()
    checked: World = rank
    return checked


def test_after_a_transfer_of_the_gpu_the_fault_is_raised(world: World) -> None:
    with pytest.raises(RuntimeError, match="device-side assert"):
        world.wait(Work(), "hidden states")  # type: ignore[arg-type]


def test_what_nccl_says_of_a_broken_gpu_is_that_fault(world: World) -> None:
    said = RuntimeError("NCCL error: remote process exited or there was a network error")
    with pytest.raises(RuntimeError, match="device-side assert"):
        world.wait(Work(said), "hidden states")  # type: ignore[arg-type]


def test_the_agreement_goes_on_although_the_gpu_broke(world: World) -> None:
    """It goes over the host: the other ranks must hear of the fault, not of a lost rank."""
    world.wait(world._agreeing, "all ranks")


def test_once_the_fault_is_known_a_lost_peer_is_a_lost_peer(world: World) -> None:
    world.device_lost = True
    world._agreeing = Work(RuntimeError("Connection closed by peer"))  # type: ignore[assignment]
    with pytest.raises(TransportError, match="all ranks"):
        world.wait(world._agreeing, "all ranks")


@pytest.mark.parametrize(
    ("error", "is_fault"),
    [
        (RuntimeError("Triton Error [CUDA]: device-side assert triggered"), True),
        (FAULT, True),
        (ValueError("no such slot"), False),
    ],
)
def test_a_call_that_met_the_broken_gpu_is_a_device_fault_in_any_words(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, is_fault: bool
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # put back afterwards
    world.rank, world.label, world.ledger = 1, "PP1", Ledger()
    checks = CheckList(1, "PP1", [])
    calls = TargetCalls(world, checks, Faults([], lambda injection: None))
    calls.fail("apply_sampled", 7, error)
    (finding,) = checks.findings
    assert finding.message.startswith("device fault, in step 7") == is_fault
    assert str(error) in finding.message
    assert (world.device_lost, calls.relay_failed, world.ledger.broken) == (is_fault,) * 3


def test_checks_that_are_left_aside_are_not_freed() -> None:
    """NCCL's stream wrote what came in: freed on a broken GPU, it would end the process."""
    checks = CheckList(1, "PP1", [])
    received = torch.zeros(4, 4)
    checks.record(received, lambda array: None, copy=False)
    kept = weakref.ref(received)
    del received
    checks.discard()
    checks.judge()
    assert kept() is not None and checks.num_checks == 0
