"""Kernels under Triton's interpreter give the same with its functions left in place."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from worlds import environment, run_fresh

KERNELS = """
import json, sys
import torch, triton, triton.language as tl
from triton.language import core
from triton.runtime import interpreter
from ppharness.kernels.interpreter import keep_language_replaced
from ppharness.kernels.num_accepted import fill_num_accepted, scatter_num_accepted

@triton.jit
def double(x):
    return tl.where(x > 2, x * 2, x)

@triton.jit
def total(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    for _ in tl.range(0, 2):
        x = double(x)
    tl.store(out_ptr, tl.sum(x, axis=0) + tl.cdiv(N, 3))
    tl.atomic_add(out_ptr + 1, tl.max(x, axis=0))

@triton.jit
def by_core(x_ptr, out_ptr):
    core.store(out_ptr, core.load(x_ptr) + core.program_id(0))

def run():
    got = []
    for dtype in (torch.int32, torch.int64):
        mapping = torch.tensor([2, -1, 0], dtype=dtype)
        buffer = torch.full((4,), 9, dtype=torch.int32)
        fill_num_accepted(mapping, buffer, 0)
        got.append(buffer.tolist())
        scatter_num_accepted(mapping, buffer, torch.tensor([3, 8, 0], dtype=torch.int32))
        got.append(buffer.tolist())
    x, out = torch.arange(8, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    total[(1,)](x, out, N=8)
    got.append(out.tolist())
    by_core[(2,)](x + 5, out)
    got.append(out.tolist())
    return got

load = tl.load
before = run()
restored = tl.load is load
keep_language_replaced()
after = [run() for _ in range(3)]
print(json.dumps([before, after, restored, tl.load is load]))
"""


def test_the_same_values(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)
    run = run_fresh(
        tmp_path, "kernels.py", command=(sys.executable,),
        env={**environment(), "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.code == 0, run.stderr
    before, after, restored, still = json.loads(run.stdout.splitlines()[0])
    assert before[0] == before[2] == [1, 9, 1, 9]
    assert before[1] == before[3] == [1, 9, 3, 9]
    assert after == [before] * 3
    assert restored or not still  # an old Triton never puts them back
    assert not still, "the interpreter's functions did not stay"
