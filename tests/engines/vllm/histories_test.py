"""Histories from a printed seed. KVIST_SEED=... replays one; KVIST_HISTORIES=... plays more of each kind."""

import dataclasses
import os

import pytest
from histories import Faults, History, seeds
from layouts import Layout
from settings import STATES, Shape

from kvist.vllm import scheduler
from kvist.vllm.turns import Turns

SMALL = Shape(blocks=40)
STATEFUL = Shape(blocks=64, windows=(0, STATES), chunk=16, retention=0)
KINDS = {
    "calm": (SMALL, Faults()),
    "slow": (SMALL, Faults(pause=60)),
    "deadly": (SMALL, Faults(kill=20, pause=20, clear=10)),
    "scheduled ahead": (dataclasses.replace(SMALL, ahead=True), Faults(pause=30, kill=10)),
    "scheduled ahead, roomy": (Shape(blocks=160, max_seqs=16, step_tokens=256, ahead=True), Faults(pause=20, clear=10)),
    "scheduled ahead, hybrid": (Shape(blocks=64, windows=(0, 48, 96), ahead=True), Faults(pause=30, kill=10)),
    "scheduled ahead, stores on eviction": (
        dataclasses.replace(SMALL, ahead=True),
        Faults(pause=30, kill=5),
        {"store": "on_eviction", "evict_ahead": 8},
    ),
    "roomy": (Shape(blocks=160, max_seqs=16, step_tokens=256), Faults(pause=20, clear=10)),
    "drafts": (Shape(blocks=48, drafts=3), Faults(pause=30)),
    "hybrid": (Shape(blocks=64, windows=(0, 64)), Faults(pause=30)),
    "hybrid deadly": (Shape(blocks=64, windows=(0, 48, 96)), Faults(kill=20, pause=20, clear=10)),
    "windows": (Shape(blocks=64, windows=(64,)), Faults(pause=30, kill=10)),
    "hybrid, few kept": (Shape(blocks=64, windows=(0, 64), retention=0), Faults(pause=30)),
    "states": (STATEFUL, Faults(pause=30)),
    "states, all kept": (dataclasses.replace(STATEFUL, retention=None), Faults(pause=30)),
    "states deadly": (dataclasses.replace(STATEFUL, windows=(STATES, 0, 64, STATES)), Faults(kill=20, pause=20, clear=10)),
    "scheduled ahead, states": (dataclasses.replace(STATEFUL, ahead=True), Faults(pause=30, kill=10)),
    "tp, states": (dataclasses.replace(STATEFUL, tp=2), Faults(pause=30, kill=10)),
    "no local cache": (Shape(blocks=40, prefix_caching=False), Faults(pause=30, kill=10)),
    "mla": (Shape(blocks=40, layout=Layout("mla")), Faults(pause=30)),
    "pages of two forms": (dataclasses.replace(SMALL, layout=Layout("mixed")), Faults(pause=30, kill=10)),
    "pages of two forms, stores on eviction": (
        dataclasses.replace(SMALL, layout=Layout("mixed")),
        Faults(pause=30, kill=5),
        {"store": "on_eviction", "evict_ahead": 8},
    ),
    "tp": (Shape(blocks=40, tp=2), Faults(pause=30, kill=10)),
    "tp replicated": (Shape(blocks=40, tp=2, replicated=True, layout=Layout("mla")), Faults(pause=30, kill=10)),
    "pp": (Shape(blocks=40, pp=2), Faults(pause=30, kill=10)),
    "tp and pp, hybrid": (Shape(blocks=64, tp=2, pp=2, windows=(0, 64)), Faults(pause=30, kill=10)),
    "priorities": (Shape(blocks=40, policy="priority"), Faults(pause=40)),
    "stores on eviction": (SMALL, Faults(pause=30, kill=5), {"store": "on_eviction", "evict_ahead": 8}),
    "hybrid, stores on eviction": (
        Shape(blocks=64, windows=(0, 64)),
        Faults(pause=30),
        {"store": "on_eviction", "evict_ahead": 8},
    ),
    "loads inside the step": (SMALL, Faults(pause=10, kill=5), {"load": "layerwise", "load_timeout_s": 0.2}),
    "blocks of 64, chunks of 64": (Shape(blocks=20, block=64, chunk=64), Faults(pause=30)),
}


@pytest.fixture(autouse=True)
def no_turn_is_missed(monkeypatch):
    """The turn of every request whose next chunk is full with a step has come, though that of few others."""
    real = Turns.begin_step

    def begin_step(self, scheduled, total, requests):
        assert total == sum(scheduled.values())
        prompts = real(self, scheduled, total, requests)
        due = {request_id for request_id, step in self._due if request_id in requests and requests[request_id].turn == step}
        for request_id, tokens in scheduled.items():
            tracked = requests.get(request_id)
            if tracked is not None and tracked not in prompts and request_id not in due:
                full = min(tracked.request.num_computed_tokens + tokens, tracked.request.num_tokens)
                assert full < tracked.next_store_tokens, f"{request_id} has {full} tokens, and its turn is not now"
        return prompts

    monkeypatch.setattr(Turns, "begin_step", begin_step)


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("kind", KINDS)
def test_history(kind, seed, daemon, ledger, start):
    shape, faults, *extra = KINDS[kind]
    print(f"KVIST_SEED={seed} kind: {kind}")
    engine = start(daemon, shape, **{"lookup_timeout_s": 0.25, "load_timeout_s": 1.0, **dict(*extra)})
    history = History(seed, [engine], ledger, daemon, faults)
    try:
        history.play(250)
        history.rest()
    except AssertionError:
        print(history.counts)
        if "KVIST_STORY" in os.environ:
            print(*engine.story, sep="\n")
        raise
    print(history.counts)
    if daemon.running:
        daemon.wait_idle()
    engine.close()
    daemon.wait_idle(sessions=0)


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("ahead", [False, True])
def test_second_runner(ahead, seed, daemon, ledger, start):
    """It writes into new blocks before a connector can stop what reads them, so that stores hold theirs."""
    print(f"KVIST_SEED={seed}")
    engine = start(daemon, dataclasses.replace(STATEFUL, ahead=ahead, second_runner=True))
    history = History(seed, [engine], ledger, daemon, Faults(pause=30, kill=5))
    history.play(250)
    history.rest()
    print(history.counts)


@pytest.mark.parametrize("seed", seeds())
def test_a_store_a_step(seed, daemon, ledger, start, monkeypatch):
    """Of requests that decode one is looked at in a step: the others' chunks are stored later, or not at all, and never wrong."""
    monkeypatch.setattr(scheduler, "_STORES_S", -1.0)
    print(f"KVIST_SEED={seed}")
    engine = start(daemon, Shape(blocks=64, windows=(0, 64)))
    history = History(seed, [engine], ledger, daemon, Faults(pause=20, kill=10))
    history.play(250)
    history.rest()
    print(history.counts)


@pytest.mark.parametrize("seed", seeds())
def test_two_engines_share(seed, daemon, ledger, start):
    """Data parallel replicas, or two engines of one machine: one's chunks are the other's hits."""
    print(f"KVIST_SEED={seed}")
    engines = [start(daemon, SMALL, instance=f"replica_dp{i}") for i in range(2)]
    history = History(seed, engines, ledger, daemon, Faults(pause=20, clear=5))
    history.play(200)
    history.rest()
    print(history.counts)
