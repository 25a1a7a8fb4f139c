"""kvist's series on SGLang's own /metrics: read as SGLang reads them, out of the folder in which its processes write them."""

import multiprocessing
import time

import pytest
from kvist.sglang.stats import CALLS_WITHOUT_KVISTD, TOTALS
from kvist.sglang.tree_side import COUNTS
from kvist_daemon import Daemon
from pools import config, mha_pool, pages_of, wait_for
from prometheus_client import CollectorRegistry, multiprocess

# The class of value is chosen at prometheus_client's import, by the environment: so each way runs in a process of its own.
spawn = multiprocessing.get_context("spawn")


def storage_process(daemon_socket, stop):
    from types import SimpleNamespace

    from kvist.sglang import KvistStorage

    storage = KvistStorage(config(SimpleNamespace(socket=daemon_socket), tp_rank=1, tp_size=2), {})
    storage.register_mem_pool_host(mha_pool())
    storage.batch_set_v1(["ab" * 32], pages_of(1))
    while not stop.is_set():
        storage.batch_exists(["ab" * 32])
        storage.get_stats()
        time.sleep(0.01)


def tree_process(daemon_socket, stop):
    from sglang.srt.runtime_context import get_parallel
    from tree_engine import TreeEngine

    with get_parallel().override(tp_rank=0, pp_rank=0, dp_rank=None):
        engine = TreeEngine(daemon_socket, metrics=True)
    engine.add(range(40))
    engine.run()
    while not stop.is_set():
        engine.tree.flush_pending_backups()
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("process", "labels", "names", "counted"),
    [
        (storage_process, {"model_name": "toy", "tp_rank": "1"}, {**TOTALS, CALLS_WITHOUT_KVISTD: ""}, "pages_stored"),
        (tree_process, {"model_name": "dummy", "tp_rank": "0"}, COUNTS, "stores"),
    ],
    ids=["storage", "tree"],
)
def test_metrics_say_what_was_done_and_that_kvistd_is_away(process, labels, names, counted, tmp_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    labels = {**labels, "pp_rank": "0", "dp_rank": "0"}

    def series(name):
        assert engine.is_alive()
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry, str(tmp_path))
        return registry.get_sample_value(f"sglang:kvist_{name}", labels)

    with Daemon() as daemon:
        stop = spawn.Event()
        engine = spawn.Process(target=process, args=(daemon.socket, stop), daemon=True)
        engine.start()
        try:
            wait_for(lambda: (series(f"{counted}_total") or 0) >= 1, 120.0)
            assert series("away") == 0
            assert all(series(f"{name}_total") is not None for name in names)
            daemon.kill()
            wait_for(lambda: series("away") == 1)
            daemon.start()
            wait_for(lambda: series("away") == 0)
        finally:
            stop.set()
            engine.join(30)
            engine.kill()
        assert engine.exitcode == 0
