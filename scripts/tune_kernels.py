"""Which block size and number of warps suit the fill and scatter kernels on this GPU.

    python scripts/tune_kernels.py [--rows 4 256 1024 8192 65536]

Device time of one call within a replayed CUDA graph, as a ratio to an empty kernel's that
is measured right before and after; the built-in choice is marked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from functools import partial

os.environ["TRITON_INTERPRET"] = "0"
BLOCKS = (32, 64, 128, 256, 512, 1024)
WARPS = (1, 2, 4, 8)


def main() -> int:
    """Prints a table a size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 256, 1024, 8192, 65536])
    options = parser.parse_args()
    import torch

    from ppharness.bench import device_times
    from ppharness.kernels import bench_kernels, num_accepted

    if not torch.cuda.is_available():
        sys.stderr.write("tune_kernels: error: it needs a GPU\n")
        return 2
    print(torch.cuda.get_device_name())
    for rows in options.rows:
        mapping = torch.randperm(rows, device="cuda").to(torch.int32)
        mapping[::10] = -1
        counts = torch.randint(0, 5, (rows,), device="cuda", dtype=torch.int32)
        buffer = torch.ones(rows, dtype=torch.int32, device="cuda")
        fill, scatter = (
            num_accepted._fill_num_accepted_kernel,
            num_accepted._scatter_num_accepted_kernel,
        )
        empty = partial(bench_kernels.empty, mapping)
        shape, options = num_accepted.launch_shape(rows)
        print(f"\n{rows} rows; device time / empty kernel's: fill, scatter")
        print("  block" + "".join(f"{f'{w} warps':>16}" for w in WARPS))
        for block in BLOCKS:
            line = []
            for warps in WARPS:
                grid = (-(-rows // block),)
                how = {**options, "ROWS": block, "num_warps": warps}
                ratios = []
                for call in (
                    partial(fill[grid], mapping, buffer, 1, rows, **how),
                    partial(scatter[grid], mapping, counts, buffer, rows, **how),
                ):
                    base = statistics.median(device_times(empty, 3))
                    time = statistics.median(device_times(call, 5))
                    base = (base + statistics.median(device_times(empty, 3))) / 2
                    ratios.append(time / base)
                own = (block, warps) == (shape, options["num_warps"])
                line.append(f"{'*' if own else ' '}{ratios[0]:>6.2f}{ratios[1]:>7.2f}")
            print(f"{block:>7}" + "".join(f"{text:>16}" for text in line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
