"""What vLLM's scheduler waits for: 1.5 ms once for a prompt of 131,072 tokens, 100 us p99 for every other call with 64 running requests.

The clock on the wall of a machine that others use proves nothing: it is printed. Asserted is the processor's time that calls took, beside a loop of
Python and what an access to memory takes, measured in the same run: the step before a call has filled the caches with other things, so of a call
most is waiting for memory, of which some machines take three times as long as others.
"""

import functools
import statistics
import time
from array import array

import numpy as np
import pytest
from scenarios import prompt
from settings import Shape

pytestmark = pytest.mark.alone

SCHEDULER_CALLS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
    "take_events",
    "get_kv_connector_stats",
    "has_pending_push_work",
    "has_pending_block_frees",
)
WORKER_CALLS = ("handle_preemptions", "start_load_kv", "wait_for_save", "get_transfer_results", "get_block_ids_with_load_errors",
                "get_kv_connector_stats", "build_connector_worker_meta")  # fmt: skip


class Clock:
    """Measures the calls of a connector's methods, each by name: on the wall, and of its thread's processor time."""

    def __init__(self, connector, names: tuple[str, ...]) -> None:
        self.times: dict[str, list[float]] = {name: [] for name in names}
        self.cpu: dict[str, list[float]] = {name: [] for name in names}
        for name in names:
            setattr(connector, name, self._measured(name, getattr(connector, name)))

    def _measured(self, name: str, real):
        times, cpu = self.times[name], self.cpu[name]

        @functools.wraps(real)
        def call(*arguments, **named):
            begin, cpu_begin = time.perf_counter(), time.thread_time()
            result = real(*arguments, **named)
            cpu.append(time.thread_time() - cpu_begin)
            times.append(time.perf_counter() - begin)
            return result

        return call

    def table(self) -> str:
        rows = []
        for name, times in self.times.items():
            if times:
                rows.append(
                    f"  {name:32} {len(times):6} calls  p50 {1e6 * quantile(times, 0.5):7.1f} us  p99 {1e6 * quantile(times, 0.99):7.1f} us"
                    f"  of a processor p99 {1e6 * quantile(self.cpu[name], 0.99):7.1f}"
                )
        return "\n".join(rows)


def quantile(times: list[float], q: float) -> float:
    times = sorted(times)
    return times[min(len(times) - 1, int(q * len(times)))]


def calibrated() -> float:
    """Seconds that this machine takes now for 1,000 turns of a small Python loop: about 50 us where nobody else computes."""
    took = []
    for _ in range(50):
        begin = time.perf_counter()
        total = 0
        for i in range(1000):
            total += i & 3
        took.append(time.perf_counter() - begin)
    return statistics.median(took)


def memory() -> float:
    """Seconds that this machine takes for an access to memory that no cache has, nor the address: about 130 ns where pages are mapped plainly."""

    def walk(words: int, steps: int = 20_000) -> float:
        order = np.random.default_rng(1).permutation(words)
        links = np.empty(words, dtype=np.uint64)
        links[order] = np.roll(order, -1)
        following, at = array("Q", links.tobytes()), 0
        begin = time.perf_counter()
        for _ in range(steps):
            at = following[at]
        return (time.perf_counter() - begin) / steps

    return statistics.median(walk(1 << 24) for _ in range(3)) - statistics.median(walk(1 << 8) for _ in range(5))


def test_long_prompt(daemon, start):
    engine = start(daemon, Shape(blocks=64, chunk=256, max_model_len=140_000))
    tokens = prompt(1, 131_072)
    clock = Clock(engine.connector, ("on_new_request",))
    for i in range(9):
        tokens[0] = 3 + i
        request = engine.add(tokens)
        engine.abort(request)
        engine.step()
    times = clock.times["on_new_request"]
    loop = calibrated()
    print(f"on_new_request, 131,072 tokens: {1e3 * min(times):.2f} to {1e3 * max(times):.2f} ms, median {1e3 * statistics.median(times):.2f} "
          f"(wanted: 1.5 where 1,000 turns of a loop take 50 us; here {1e6 * loop:.0f})")  # fmt: skip
    assert min(times) < 10 * 1.5e-3 * max(1.0, loop / 50e-6)


@pytest.mark.parametrize(
    ("busy", "events"),
    [(True, False), (True, True), (False, False)],
    ids=["64 running", "64 running with KV events", "nothing to do"],
)
def test_every_other_call(busy, events, daemon, start, tmp_path):
    endpoint = f"ipc://{tmp_path}/events" if events else ""
    engine = start(daemon, Shape(blocks=64 * 40, chunk=256, max_seqs=66, step_tokens=2048, events=endpoint))
    if busy:
        for i in range(6):  # what newcomers will find
            engine.prefill(prompt(100 + i, 280), max_tokens=1)
        engine.settle()
        engine.reset()
        for i in range(64):
            engine.add(prompt(i, 300), max_tokens=400)
        engine.until(lambda: len(engine.scheduler.running) == 64)
    scheduler = Clock(engine.connector, SCHEDULER_CALLS[1:])
    worker = Clock(engine.workers[0].connector, WORKER_CALLS)
    for i in range(300):
        if busy and i % 6 == 0:
            engine.add(prompt(100 + i // 6, 300), max_tokens=3)
        engine.step()
    loop, access = calibrated(), memory()
    slower = max(1.0, loop / 50e-6, access / 130e-9)
    print(
        "scheduler's calls (wanted: p99 100 us where 1,000 turns of a loop take 50 us and an access to memory 130 ns; "
        f"here {1e6 * loop:.0f} us and {1e9 * access:.0f} ns, so {100 * slower:.0f} us):\n{scheduler.table()}"
    )
    print(f"worker's calls:\n{worker.table()}")
    # Others on the machine take caches away, and their interrupts count as ours: beside a compiler's work p99 is up to 1.5 times as long.
    wanted = 2.5 * (100e-6 if busy else 40e-6) * slower
    slow = {name: took for name, times in scheduler.cpu.items() if times and (took := quantile(times, 0.99)) > wanted}
    assert not slow, slow
    for request_id in list(engine.scheduler.requests):
        engine.abort(request_id)
    engine.settle()
