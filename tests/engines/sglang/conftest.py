"""What a test of SGLang's storage gets."""

import pytest
from kvist.sglang import KvistStorage
from kvist_daemon import Daemon
from pools import config
from tree_engine import TreeEngine


@pytest.fixture
def small_daemon():
    # LRU: what a crowd drives out is what was used longest ago. LHD would keep what was asked for, and give the crowd away.
    with Daemon(pool__bytes="4MiB", eviction__policy="lru") as running:
        yield running


@pytest.fixture
def engines():
    """engines(socket, **settings) -> a TreeEngine; at the end each is seen to leave nothing behind."""
    opened = []

    def open_one(socket, **settings):
        opened.append(TreeEngine(socket, **settings))
        return opened[-1]

    yield open_one
    for engine in reversed(opened):
        engine.close()


@pytest.fixture
def attach(daemon):
    """attach(pool, **config) -> a KvistStorage that serves `pool`; closed at the end."""
    opened = []

    def open_one(pool, at=None, **settings):
        storage = KvistStorage(config(at or daemon, **settings), {})
        opened.append(storage)
        storage.register_mem_pool_host(pool)
        storage.on_host_pools_registered()
        return storage

    yield open_one
    for storage in opened:
        storage.close()
