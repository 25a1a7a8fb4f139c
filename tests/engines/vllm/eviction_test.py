"""Stores on eviction: what vLLM's block pool is about to reuse is kept, though kvistd doesn't take it the first time."""

import pytest
from kvist.vllm.worker import WorkerSide, _Copy
from scenarios import prompt
from settings import Shape


@pytest.mark.parametrize("failures", [1, 2], ids=["taken the second time", "never taken"])
def test_what_was_not_taken_is_offered_once_more(failures, daemon, ledger, start, monkeypatch):
    engine = start(daemon, Shape(blocks=48), store="on_eviction", evict_ahead=8)
    began: list[bytes] = []  # the last key of each store
    real = WorkerSide._store

    def store(side, planned):
        began.append(planned.keys[-32:])
        return _Copy(planned.job, [], failed=True) if began.count(began[-1]) <= failures else real(side, planned)

    monkeypatch.setattr(WorkerSide, "_store", store)
    engine.prefill(prompt(1, 100), max_tokens=1)
    assert not began  # the request is gone, its chunks are remembered
    for number in range(2, 40):  # short ones: its blocks come to the head of the queue steps before they are reused
        engine.prefill(prompt(number, 20), max_tokens=1)
    engine.settle(ledger)
    assert began and max(map(began.count, began)) == 2  # however often it fails
    engine.reset()
    engine.loaded_tokens()
    engine.prefill(prompt(1, 100), max_tokens=1)
    assert engine.loaded_tokens() == (96 if failures == 1 else 0)
    engine.settle(ledger)


def test_after_a_reset_nothing_older_is_offered(daemon, ledger, start, monkeypatch):
    """New weights: what the blocks hold then has the same hashes, and another key."""
    engine = start(daemon, Shape(blocks=48), store="on_eviction", evict_ahead=8)
    began: list[bytes] = []
    held = True
    real = WorkerSide._stored

    def store(side, planned):
        began.append(planned.keys[-32:])
        return _Copy(planned.job, [], failed=True)

    monkeypatch.setattr(WorkerSide, "_store", store)
    monkeypatch.setattr(WorkerSide, "_stored", lambda side, store: not held and real(side, store))
    number = 0
    while len(began) < 3:
        number += 1
        engine.prefill(prompt(number, 100), max_tokens=1)
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    older, held = set(began), False
    engine.settle(ledger)
    began.clear()
    while len(began) < 3:
        number += 1
        engine.prefill(prompt(number % 8, 100), max_tokens=1)
    engine.settle(ledger)
    assert not older & set(began)
    stores = engine.connector._scheduler._stores
    assert not older & {chunk.key for chunk in stores._on_eviction._chunks.values()}
