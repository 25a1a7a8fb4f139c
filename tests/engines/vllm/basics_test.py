"""What a connector is for: what was computed once is loaded, right, wherever it may be used, and nothing else waits for it."""

import time

import pytest
from kvist_daemon import Daemon
from layouts import Layout
from preemption_rules_test import KvistWorld
from scenarios import prompt, steps, stored
from settings import Shape

from kvist.vllm import scheduler


def test_a_prompt_is_loaded_after_reset(daemon, ledger, start):
    engine = start(daemon)
    engine.prefill(prompt(1, 200))
    engine.settle(ledger)
    assert engine.loaded_tokens() == 0
    engine.reset()
    engine.prefill(prompt(1, 200))
    engine.settle(ledger)
    assert engine.loaded_tokens() == 192
    assert engine.outputs["r1"] == engine.outputs["r2"]
    daemon.wait_idle()


@pytest.mark.parametrize("hashed_beside", [64, 0], ids=["hashed with its store", "hashed a step before"])
def test_what_was_generated_is_loaded(hashed_beside, daemon, ledger, start, monkeypatch):
    """KV of decoded tokens is stored when its chunk is full: the next turn of the conversation finds it."""
    monkeypatch.setattr(scheduler, "_HASHED_BESIDE", hashed_beside)
    engine = start(daemon)
    request_id = engine.prefill(prompt(1, 50), max_tokens=100)
    turn = list(engine.requests[request_id].all_token_ids)
    engine.settle(ledger)
    engine.reset()
    engine.loaded_tokens()
    engine.prefill(turn + prompt(2, 20))
    assert engine.loaded_tokens() == (len(turn) - 1) // 32 * 32
    engine.settle(ledger)


def test_stores_may_come_steps_later(daemon, ledger, start, monkeypatch):
    """Requests that fill their chunks in the same step, where there is time for one store in a step: all are kept."""
    monkeypatch.setattr(scheduler, "_STORES_S", -1.0)
    engine = start(daemon)
    ids = [engine.add(prompt(i, 40), max_tokens=50) for i in range(4)]
    requests = [engine.requests[request_id] for request_id in ids]
    engine.settle(ledger)
    engine.reset()
    engine.loaded_tokens()
    for request in requests:
        turn = list(request.all_token_ids)
        engine.prefill(turn + prompt(9, 20), max_tokens=1)
        assert engine.loaded_tokens() == (len(turn) - 1) // 32 * 32
    engine.settle(ledger)


def test_local_hits_are_not_loaded(daemon, ledger, start):
    """vLLM's own cache holds the first half, kvist all of it: only the rest is loaded, and nothing is written over."""
    engine = start(daemon)
    stored(engine, KvistWorld(daemon, ledger, start), prompt(1, 200))
    engine.prefill(prompt(1, 112), max_tokens=1)  # 96 from kvist
    engine.loaded_tokens()
    engine.prefill(prompt(1, 200), max_tokens=1)
    assert engine.loaded_tokens() == 192 - 112
    engine.settle(ledger)


@pytest.mark.parametrize("replicated", [False, True], ids=["split", "replicated"])
def test_tensor_parallel(replicated, daemon, ledger, start):
    """Each rank gets its own bytes back; bytes that all ranks have are kept once."""
    shape = Shape(tp=2, replicated=replicated, layout=Layout("mla") if replicated else Layout("hnd"))
    engine = start(daemon, shape)
    stored(engine, KvistWorld(daemon, ledger, start), prompt(1, 200))
    for worker in engine.workers:
        for view in worker.views:
            view.fill_(0)
        worker.note_free_blocks()
    engine.prefill(prompt(1, 200) + prompt(2, 20))
    assert engine.loaded_tokens() == 192
    engine.settle(ledger)
    assert daemon.status()["pool"]["slots"] == (6 if replicated else 12)


@pytest.mark.parametrize("tp", [1, 2])
def test_pipeline_parallel(tp, daemon, ledger, start):
    engine = start(daemon, Shape(tp=tp, pp=2))
    stored(engine, KvistWorld(daemon, ledger, start), prompt(1, 200))
    for worker in engine.workers:
        for view in worker.views:
            view.fill_(0)
        worker.note_free_blocks()
    engine.prefill(prompt(1, 200) + prompt(2, 20))
    assert engine.loaded_tokens() == 192
    engine.settle(ledger)


def test_data_parallel_engines_share(daemon, ledger, start):
    one, other = (start(daemon, instance=f"replica_dp{i}") for i in range(2))
    one.prefill(prompt(1, 200))
    one.settle(ledger)
    other.prefill(prompt(1, 200))
    assert other.loaded_tokens() == 192
    other.settle(ledger)


def test_other_shapes_do_not_share(daemon, ledger, start):
    """Another block size, chunk, window, layout or number of ranks: other bytes."""
    stored(start(daemon, Shape(blocks=96)), KvistWorld(daemon, ledger, start), prompt(1, 200))
    others = (Shape(blocks=96, block=32), Shape(blocks=96, chunk=64), Shape(blocks=96, windows=(0, 64)), Shape(blocks=96, tp=2),
              Shape(blocks=96, layout=Layout("kv_first")), Shape(blocks=96, layout=Layout("hnd", heads=4, head_size=4)))  # fmt: skip
    for shape in others:
        engine = start(daemon, shape)
        engine.prefill(prompt(1, 200))
        assert engine.loaded_tokens() == 0, shape
        engine.settle(ledger)


class Crowd:
    """A request that runs for 900 steps, and what it sees of another one that waits: nothing."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.runs = engine.add(prompt(1000, 40), max_tokens=900)
        engine.until(lambda: engine.outputs.get(self.runs))  # its own lookup has been answered

    def wait_for(self, waits: str) -> tuple[int, float]:
        """Steps until `waits` has finished, in each of which the crowd got its token. In how many `waits` was waiting, seconds of all."""
        engine = self.engine
        begin = time.monotonic()
        said = len(engine.outputs[self.runs])
        count = waited = 0
        while not engine.status(waits).name.startswith("FINISHED") and count < 800:
            engine.step()
            count += 1
            waited += engine.status(waits).name == "WAITING"
            time.sleep(0.001)
        assert engine.status(waits).name == "FINISHED_LENGTH_CAPPED"
        assert len(engine.outputs[self.runs]) == said + count
        return waited, time.monotonic() - begin

    def leave(self, ledger) -> None:
        self.engine.abort(self.runs)
        self.engine.settle(ledger)


def test_unanswered_lookup_delays_nobody_else(daemon, ledger, start):
    """As while slow tiers are asked: the request waits, for so long as a lookup may take; the others get their step each time."""
    engine = start(daemon, Shape(blocks=96), lookup_timeout_s=0.3)
    crowd = Crowd(engine)
    daemon.pause()
    waited, took = crowd.wait_for(engine.add(prompt(2, 100), max_tokens=2))
    daemon.resume()
    assert waited > 2
    print(f"computed after {took:.2f} s (the lookup may take 0.3)")
    crowd.leave(ledger)


def on_slow_tier(daemon, engine, ledger, tokens: list[int]) -> None:
    """`tokens` are in kvist, their chunks on the tier below: they are the oldest of more than its pool keeps."""
    engine.prefill(tokens, max_tokens=1)
    number = 0
    while daemon.status()["evictions"] < 50:
        number += 1
        assert number < 300
        engine.prefill(prompt(number, 200), max_tokens=1)
        engine.settle(ledger)
    engine.reset()
    engine.loaded_tokens()


def test_slow_tier_delays_nobody_else(ledger, start):
    """A hit that must be read from a slow tier: its request waits without blocks (None), the others get their step each time."""
    with Daemon(command=("kvistd_delayed", "300"), pool__bytes="2MiB") as daemon:
        engine = start(daemon, Shape(blocks=96), slow_timeout_s=5.0)
        first = prompt(0, 200)
        on_slow_tier(daemon, engine, ledger, first)
        crowd = Crowd(engine)
        waited, took = crowd.wait_for(engine.add(first, max_tokens=2))
        assert engine.loaded_tokens() == 192
        assert waited > 10 and took > 0.25
        print(f"loaded after {took:.2f} s (the tier takes 0.3), waiting in {waited} steps")
        crowd.leave(ledger)


def test_running_request_waits_for_no_slow_tier(ledger, start):
    """A request that vLLM computes whatever kvistd has needs to know only what not to store: it asks once more at most, not with each chunk."""
    with Daemon(command=("kvistd_delayed", "300"), pool__bytes="2MiB") as daemon:
        engine = start(daemon, Shape(blocks=96, step_tokens=32), slow_timeout_s=5.0)
        first = prompt(0, 200)
        on_slow_tier(daemon, engine, ledger, first)
        asked, stored_before = ledger.lookups, len(ledger.calls)
        engine.prefill(first + prompt(2000, 200), max_tokens=1, skip_reading=True)
        assert ledger.lookups <= asked + 2
        engine.settle(ledger)
        assert len(ledger.calls) > stored_before  # what kvistd hadn't
        assert engine.loaded_tokens() == 0


def test_reset_of_the_connector(daemon, ledger, start):
    """After a reset with reset_connector (new weights) nothing that was stored before is found."""
    engine = start(daemon)
    stored(engine, KvistWorld(daemon, ledger, start), prompt(1, 200))
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    engine.prefill(prompt(1, 200))
    assert engine.loaded_tokens() == 0
    engine.settle(ledger)
    engine.reset()
    engine.prefill(prompt(1, 200))
    assert engine.loaded_tokens() == 192
    engine.settle(ledger)


def test_reset_while_stores_are_under_way(daemon, ledger, start):
    """What vLLM can do alone it can do with kvist: forget its cache with requests running, kvistd standing."""
    engine = start(daemon, Shape(blocks=96, step_tokens=200))
    world = KvistWorld(daemon, ledger, start)
    with world.late():
        for i in range(3):
            engine.add(prompt(i, 150), max_tokens=20)
        world.hold()
        steps(engine, 4)
        assert any(call.name == "store" for call in ledger.ops.values())
        assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        steps(engine, 4)
    engine.run()
    engine.settle(ledger)
    engine.reset()
    for i in range(3):
        engine.prefill(prompt(i, 150))
    engine.settle(ledger)
