#!/usr/bin/env python3
"""Runs a command beside a GEMM loop on the GPU, and says how much slower the GEMM was for it.

usage: gemm_beside.py COMMAND [ARGUMENT]...     exit status: the command's
"""

import subprocess
import sys
import time

import torch

SIZE = 8192  # bf16: some milliseconds a product, all SMs


def per_second(a: torch.Tensor, b: torch.Tensor, until) -> float:
    """Products a second while `until()` is false."""
    count, began = 0, time.perf_counter()
    while not until():
        for _ in range(10):
            torch.matmul(a, b)
        torch.cuda.synchronize()
        count += 10
    return count / (time.perf_counter() - began)


def main() -> int:
    a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    per_second(a, b, lambda end=time.monotonic() + 2: time.monotonic() > end)  # warm
    alone = per_second(a, b, lambda end=time.monotonic() + 5: time.monotonic() > end)
    beside = subprocess.Popen(sys.argv[1:])
    shared = per_second(a, b, lambda: beside.poll() is not None)
    again = per_second(a, b, lambda end=time.monotonic() + 5: time.monotonic() > end)
    print(f"GEMM alone {alone:.1f} and {again:.1f} products/s, beside {' '.join(sys.argv[1:])}: {shared:.1f}, "
          f"{100 * (1 - shared / min(alone, again)):.1f} % slower")
    return beside.returncode


if __name__ == "__main__":
    sys.exit(main())
