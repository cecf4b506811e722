"""What ``doctor`` says about machines that are not as they should be, faked on a CPU."""

from __future__ import annotations

import pytest
import torch

from ppharness import doctor
from ppharness.world import device
from ppharness.world.device import plan_device
from ppharness.world.errors import WorldError


@pytest.fixture
def machine(monkeypatch):
    """A machine with CUDA's torch: ``machine(gpus=..., driver=..., visible=...)``."""

    def make(
        *, count=0, there=("NVIDIA H200",), driver=(13, 0), visible=None, name="NVIDIA H200",
        memory=(100 << 30, 140 << 30), built="13.0",
    ):  # fmt: skip
        monkeypatch.setattr(torch.version, "cuda", built)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda number=0: name)
        if isinstance(memory, Exception):

            def raises(number=0):
                raise memory

            monkeypatch.setattr(torch.cuda, "mem_get_info", raises)
        else:
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number=0: memory)
        monkeypatch.setattr(doctor, "gpus_by_driver", lambda: list(there))
        monkeypatch.setattr(doctor, "driver_cuda_version", lambda: driver)
        monkeypatch.setattr(device, "driver_cuda_version", lambda: driver, raising=False)
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return make


def test_a_good_machine_has_no_problem(machine):
    machine(count=1)
    text = doctor.describe_machine()
    assert "GPU 0: NVIDIA H200, 102400 of 143360 MiB free" in text
    assert "problem:" not in text


def test_no_driver(machine):
    machine(there=(), driver=None)
    assert "problem: no NVIDIA driver is loaded" in doctor.describe_machine()


def test_driver_too_old(machine):
    machine(driver=(12, 4))
    text = doctor.describe_machine()
    assert "problem: the driver is too old: it supports CUDA 12.4" in text
    assert "needs a driver for 13.0 or newer" in text


@pytest.mark.parametrize("visible", ["", "-1"])
def test_no_gpu_is_visible(machine, visible):
    machine(visible=visible)
    text = doctor.describe_machine()
    assert f"problem: CUDA_VISIBLE_DEVICES is {visible!r}, which hides every GPU" in text


def test_a_gpu_that_is_not_there_is_visible(machine):
    machine(visible="7")
    text = doctor.describe_machine()
    assert "problem: CUDA_VISIBLE_DEVICES is '7', which names no usable GPU" in text


def test_one_of_the_visible_gpus_is_not_there(machine):
    machine(count=1, there=("NVIDIA H200", "NVIDIA H200"), visible="0,7")
    assert "names a GPU that is not there; 1 of the 2 named" in doctor.describe_machine()


def test_no_free_memory(machine):
    machine(count=1, memory=(200 << 20, 140 << 30))
    text = doctor.describe_machine()
    assert "problem: GPU 0: only 200 MiB of its memory are free" in text


def test_memory_so_full_that_cuda_does_not_start(machine):
    machine(count=1, memory=RuntimeError("CUDA error: out of memory\nmore"))
    assert "problem: GPU 0: no free memory" in doctor.describe_machine()


def test_a_mig_slice(machine):
    machine(count=1, name="NVIDIA H200 MIG 1g.18gb")
    assert "problem: GPU 0: a MIG slice" in doctor.describe_machine()


def test_a_torch_without_cuda_on_a_machine_with_a_gpu(machine):
    machine(built=None)
    assert "this torch is built without CUDA, but the machine has NVIDIA" in (
        doctor.describe_machine()
    )


@pytest.mark.parametrize("visible", ["", "7"])
def test_cuda_that_is_asked_for_and_not_there_is_refused(machine, visible):
    machine(visible=visible)
    with pytest.raises(WorldError, match="no usable GPU"):
        plan_device("cuda")


@pytest.fixture
def smi(monkeypatch, tmp_path):
    """A driver's tool that says how many MiB are free on each GPU, and notes its arguments."""

    def make(*free):
        tool = tmp_path / "nvidia-smi"
        lines = "\n".join(map(str, free))
        tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nprintf "{lines}\\n"\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.setattr(device, "_set_triton_mode", lambda interpret: None)
        return tmp_path / "asked"

    return make


def test_a_full_gpu_is_left_alone(machine, smi):
    machine(count=2)
    smi(90000, 300)
    plan = plan_device("auto")
    assert (plan.kind, plan.num_gpus, plan.backend) == ("cpu", 0, "gloo")
    assert plan.note is not None
    assert plan.note.startswith("running on the CPU: GPU 1 has only 300 MiB")
    with pytest.raises(WorldError, match="GPU 1 has only 300 MiB of its memory free"):
        plan_device("cuda")


def test_only_visible_gpus_are_asked_about(machine, smi):
    machine(count=1, visible="3")
    asked = smi(90000)
    plan = plan_device("auto")
    assert (plan.kind, plan.num_gpus, plan.note) == ("cuda", 1, None)
    assert asked.read_text().split()[-2:] == ["-i", "3"]


def test_a_tool_that_says_nothing_useful_hinders_nobody(machine, smi):
    machine(count=1)
    smi("[N/A]")
    assert plan_device("cuda").kind == "cuda"
