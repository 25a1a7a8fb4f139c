"""What a test of SGLang's storage gets."""

import pytest
from kvist.sglang import KvistStorage
from kvist_daemon import Daemon
from pools import config


@pytest.fixture
def small_daemon():
    with Daemon(pool__bytes="4MiB") as running:
        yield running


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
