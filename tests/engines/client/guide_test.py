"""The Python of examples/own_engine/README.md, run against a kvistd."""

import contextlib
import re
import time

import kvist
from client_test import CHUNK_TOKENS, PAGE_TOKENS, Pages, scheduler_of, worker_of
from kvist_daemon import REPO, Daemon


def prefill_of_the_guide():
    (code,) = re.findall(r"```python\n(.*?)```", (REPO / "examples/own_engine/README.md").read_text(), re.DOTALL)
    names = {"kvist": kvist, "contextlib": contextlib}
    exec(code, names)
    return names["prefill"]


def test_the_guides_prefill_computes_once_and_loads_then():
    prefill, pages, computed = prefill_of_the_guide(), Pages(), []
    tokens = list(range(3 * CHUNK_TOKENS + 1))

    def compute(tokens, table, first_token):
        computed.append(first_token)
        for at in range(first_token // PAGE_TOKENS, len(tokens) // PAGE_TOKENS):
            pages.fill(table[at], at)

    with Daemon() as daemon, scheduler_of(daemon) as scheduler, worker_of(daemon, pages) as worker:
        for first_page in (0, 10):
            table = list(range(first_page, first_page + 7))
            store = prefill(scheduler, worker, tokens, table, compute)
            if store is not None:
                end = time.monotonic() + 20.0
                while not worker.wait(store, 1.0).pages_released:
                    assert time.monotonic() < end
        assert computed == [0, 3 * CHUNK_TOKENS]
        assert [pages.read(page) for page in range(10, 16)] == [pages.read(page) for page in range(6)]
        daemon.wait_idle()
        daemon.kill()
        assert prefill(scheduler, worker, tokens, list(range(20, 27)), compute) is None
        assert computed == [0, 3 * CHUNK_TOKENS, 0]
