"""The radix cache with one bug each: the tests' engine sees it."""

import random

import pytest
from kvist.sglang import prompt, tree_loads
from kvist.sglang.tree_loads import Loads
from kvist.sglang.tree_stores import Stores
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from tree_engine import TreeEngine


def tokens_of(seed, count):
    return random.Random(seed).choices(range(30000), k=count)


@pytest.fixture
def opened(daemon):
    """opened(**settings) -> an engine that may end in disorder."""
    engines = []

    def open_one(**settings):
        engines.append(TreeEngine(daemon.socket, **{"lookup_timeout_s": 5.0} | settings))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.shut()


def served(engine, tokens, **request):
    req = engine.add(tokens, **request)
    engine.run()
    return engine.cached[req.rid]


def store(engine, tokens, **request):
    served(engine, tokens, **request)
    engine.settle()


def chain_without(what):
    return lambda chunk_tokens, **bound: prompt_chain(chunk_tokens, **{**bound, what: ""})


prompt_chain = prompt.Chain


@pytest.mark.parametrize(
    ("unbound", "request_of"),
    [("salt", {"salt": "a"}), ("lora", {"extra_key": "a"}), ("lora", {"extra_key": "a", "salt": "b"})],
)
def test_what_is_not_bound_into_keys_is_read_by_others(opened, monkeypatch, unbound, request_of):
    tokens = tokens_of(1, 64)
    monkeypatch.setattr(prompt, "Chain", chain_without(unbound))
    store(opened(), tokens, **request_of)
    others = {name: value for name, value in request_of.items() if (name == "salt") != (unbound == "salt")}
    with pytest.raises(AssertionError, match="reads wrong KV"):
        served(opened(), tokens, **others)


def hurt_loads(engine, hurt):
    begin = engine.tree.side._loads.begin

    def hurt_and_begin(*args):
        hurt()
        return begin(*args)

    engine.tree.side._loads.begin = hurt_and_begin


def test_a_failed_load_that_is_taken(daemon, opened, monkeypatch):
    tokens = tokens_of(2, 64)
    store(opened(), tokens)
    engine = opened()
    hurt_loads(engine, daemon.kill)
    state = Loads._state
    monkeypatch.setattr(Loads, "_state", lambda self, copy: state(self, copy) and tree_loads._THERE)
    with pytest.raises(AssertionError, match="reads wrong KV"):
        served(engine, tokens)


def test_a_load_that_is_taken_before_its_end(daemon, opened, monkeypatch):
    tokens = tokens_of(3, 64)
    store(opened(), tokens)
    engine = opened()
    hurt_loads(engine, daemon.pause)
    monkeypatch.setattr(Loads, "_state", lambda self, copy: tree_loads._THERE)
    with pytest.raises(AssertionError, match="reads wrong KV"):
        served(engine, tokens)
    daemon.resume()


def test_pages_of_an_aborted_load_that_are_given_back_at_once(daemon, opened, monkeypatch):
    tokens = tokens_of(4, 400)
    store(opened(tokens=512), tokens)
    engine = opened(tokens=512)
    hurt_loads(engine, daemon.pause)
    monkeypatch.setattr(Loads, "_leave", lambda self, load: self._give_back(load))
    monkeypatch.setattr(engine.tree.side._client, "cancel", lambda op: None)  # kvistd may have heard of it too late
    req = engine.add(tokens)
    for _ in range(10_000):  # its lookup may be answered steps later
        engine.step()
        if engine.counts["asked_tokens"] > 0:
            break
    engine.abort(req)
    req = engine.add(tokens_of(8, 400), max_new=100)  # computes into the very pages
    while len(req.output_ids) < 2:
        engine.step()
    daemon.resume()
    daemon.wait_status(lambda status: status["chunks_loaded"] > 0)
    with pytest.raises(AssertionError, match="reads wrong KV"):
        engine.run()


def test_pages_that_are_evicted_while_a_store_reads_them(daemon, opened, monkeypatch):
    tokens = tokens_of(5, 64)
    engine = opened(lookup_timeout_s=0.3)
    offer = Stores.offer

    def unlocked(self, *args):
        offer(self, *args)
        for stored in self._stores:
            self._cache.unlock(stored.lock)
            stored.lock = None

    monkeypatch.setattr(Stores, "offer", unlocked)
    daemon.pause()
    served(engine, tokens)
    engine.tree.evict(EvictParams(num_tokens=256))
    served(engine, tokens_of(6, 200))
    daemon.resume()
    engine.settle()
    with pytest.raises(AssertionError, match="reads wrong KV"):
        served(opened(), tokens)


def test_pages_that_are_never_given_back(daemon, opened, monkeypatch):
    tokens = tokens_of(7, 64)
    store(opened(), tokens)
    engine = opened()
    hurt_loads(engine, daemon.kill)
    monkeypatch.setattr(Loads, "_leave", lambda self, load: None)
    with pytest.raises(AssertionError, match="free, cached, locked, of requests"):
        served(engine, tokens)
