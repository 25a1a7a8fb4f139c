#!/usr/bin/env python3
"""Runs commands beside a GEMM loop on the GPU, one after the other, and says how much slower the GEMM was for each.

usage: gemm_beside.py COMMAND [ARGUMENT]... [-- COMMAND [ARGUMENT]...]...     exit status: 0, or that of the first command that failed
"""

import itertools
import subprocess
import sys
import time

import torch

SIZE = 8192  # bf16: some milliseconds a product, all SMs
START_SECONDS = 1  # of a command, in which it does nothing yet


class Gemm:
    def __init__(self) -> None:
        self.a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
        self.b = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)

    def per_second(self, until, skip: float = 0) -> float:
        """Products a second while `until()` is false, without those of the first `skip` seconds."""
        count, began = 0, time.perf_counter()
        counted_from = began
        while not until():
            for _ in range(4):
                torch.matmul(self.a, self.b)
            torch.cuda.synchronize()
            count += 4
            if counted_from == began and skip and time.perf_counter() - began >= skip:
                count, counted_from = 0, time.perf_counter()
        return count / (time.perf_counter() - counted_from)

    def alone(self, seconds: float) -> float:
        return self.per_second(lambda end=time.monotonic() + seconds: time.monotonic() > end)


def main() -> int:
    gemm, failed = Gemm(), 0
    gemm.alone(2)  # warm
    alone = gemm.alone(3)
    commands = [list(part) for dashes, part in itertools.groupby(sys.argv[1:], lambda word: word == "--") if not dashes]
    for command in commands:
        beside = subprocess.Popen(command)
        shared = gemm.per_second(lambda: beside.poll() is not None, START_SECONDS)
        failed = failed or beside.returncode
        again = gemm.alone(1)
        print(f"GEMM alone {alone:.1f} and {again:.1f} products/s, beside {' '.join(command)}: {shared:.1f}, "
              f"{100 * (1 - shared / min(alone, again)):.1f} % slower", flush=True)
        alone = again
    return failed


if __name__ == "__main__":
    sys.exit(main())
