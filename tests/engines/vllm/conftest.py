"""Fixtures of the contract tests. KVIST_SEED replays one history; KVIST_HISTORIES says how many there are of each kind."""

import itertools
import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

pytest.register_assert_rewrite("scenarios", "histories", "engine", "ledger")

import settings
from engine import Engine
from kvist_daemon import Daemon
from ledger import Ledger

_numbers = itertools.count()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return settings.model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture
def ledger():
    with Ledger() as ledger:
        yield ledger


@pytest.fixture
def start(model):
    """start(daemon, shape, instance=..., **settings) -> Engine, closed with the test."""
    engines: list[Engine] = []

    def begin(daemon: Daemon, shape: settings.Shape = settings.Shape(), *, instance: str | None = None, **extra) -> Engine:
        # On a busy machine kvistd may have no processor for as long as a lookup may take by default: that is a miss then.
        patient = {"lookup_timeout_s": 2.0}
        transfer = settings.transfer_config(daemon.socket, shape.chunk, **patient | extra)
        engines.append(Engine(model, shape, transfer, instance or f"engine{next(_numbers)}"))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()


@pytest.fixture
def start_reference(model):
    """start_reference(shape, break_it=...) -> Engine with the connector in reference.py; its store is empty at the test's start."""
    import reference

    reference.STORE.clear()
    reference.LEASES.clear()

    def begin(shape: settings.Shape = settings.Shape(), **extra) -> Engine:
        transfer = settings.transfer_config("", shape.chunk, "ReferenceConnector", "reference", **extra)
        return Engine(model, shape, transfer, f"engine{next(_numbers)}")

    return begin
