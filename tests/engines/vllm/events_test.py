"""KV events: a router that listens to vLLM's publisher believes what is so in kvistd, whoever changes it."""

import dataclasses
import json
import time

import kvist
import kvist.placements
import pytest
from contents import Identity
from engine import Engine
from kvist import KvistError, Status, Tier
from kvist_daemon import Daemon
from router import Router
from scenarios import prompt
from settings import Shape
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

CHUNK, BLOCK = 32, 16
PLACE = {Tier.IN_DRAM: ("CPU", "LOCAL"), Tier.ON_SSD: ("STORAGE", "LOCAL"), Tier.IN_REMOTE: ("STORAGE", "REMOTE")}


@pytest.fixture
def router(endpoint):
    with Router(endpoint) as router:
        yield router


class World:
    """An engine that publishes, and the router that listens."""

    def __init__(
        self, start, daemon: Daemon, endpoint: str, router: Router, shape: Shape = Shape(blocks=64), **settings
    ) -> None:
        # vLLM binds where it sees a wildcard.
        shape = dataclasses.replace(shape, chunk=CHUNK, block=BLOCK, events=endpoint.replace("127.0.0.1", "*"))
        self.daemon, self.router = daemon, router
        self.full_group = shape.windows.index(0)
        self.engine: Engine = start(daemon, shape, **settings)
        self.asked: list[str] = []
        # A subscriber that has just come hears nothing of what was told before: something of its own until it does.
        number = 900
        while not router.hear(0.05):
            number += 1
            self.engine.prefill(prompt(number, 40))

    @property
    def client(self) -> kvist.Client:
        return self.engine.connector._scheduler._client

    def prefill(self, tokens: list[int], **how) -> str:
        self.asked.append(self.engine.prefill(tokens, **how))
        return self.asked[-1]

    def truth(self) -> dict[int, tuple[str, str]]:
        """{block hash: its place}, of all requests so far, by asking kvistd with keys of the test's own."""
        truth = {}
        for request_id in self.asked:
            request = self.engine.requests[request_id]
            chain = kvist.Chain(CHUNK, salt=request.cache_salt or "")
            chain.append(list(request.all_token_ids))
            keys = chain.keys()
            hashes = [maybe_convert_block_hash(block) for block in request.block_hashes]
            count = min(len(keys) // 32, len(hashes) * BLOCK // CHUNK)
            if not count:
                continue
            tiers = b""
            for first in range(0, count, 100):
                some = keys[32 * first : 32 * min(first + 100, count)]
                asked = self.client.where_start(some, group=self.full_group, deadline_s=10.0)
                tiers += self.client.where_result(asked, len(some) // 32, 10.0)
            # What lookups find, is somewhere.
            assert all(tiers[: self.client.lookup(keys[: 32 * count], deadline_s=10.0).chunks])
            for number, tier in enumerate(tiers):
                fastest = next((place for bit, place in PLACE.items() if tier & bit), None)
                for block in hashes[number * CHUNK // BLOCK : (number + 1) * CHUNK // BLOCK]:
                    if fastest is not None:
                        truth[block] = fastest
        return truth

    def is_true(self) -> bool:
        truth = self.truth()
        mine = {maybe_convert_block_hash(b) for r in self.asked for b in self.engine.requests[r].block_hashes}
        believed = {block: self.router.beyond_gpu(block) for block in mine}
        return all(believed[block] == ({truth[block]} if block in truth else set()) for block in mine)

    def settle(self) -> None:
        """Until all is stored, and the router believes what is so."""
        self.engine.settle()
        stored(self.engine, self.router)
        self.router.until(self.is_true, self.steps)

    def steps(self) -> None:
        """Some: what is true takes longer to ask for than a step, each of which asks for little."""
        for _ in range(20):
            self.engine.step()


def stored(engine: Engine, router: Router) -> None:
    """Until no store of the engine is under way."""
    router.until(lambda: not any(worker.connector._worker._stores for worker in engine.workers), engine.step)


@pytest.fixture
def world(start, daemon, endpoint, router):
    return World(start, daemon, endpoint, router)


def test_what_is_stored_is_told_with_all_that_places_it(world):
    request = world.engine.requests[world.prefill(prompt(1, 160))]
    world.router.until(lambda: len(world.truth()) == 10, world.engine.step)  # its store ends steps later
    world.settle()
    hashes = [maybe_convert_block_hash(block) for block in request.block_hashes[:10]]
    assert world.truth().keys() == set(hashes)
    parents = [None, *hashes]
    for at, block in enumerate(hashes):
        tokens = tuple(request.all_token_ids[at * BLOCK : (at + 1) * BLOCK])
        assert world.router.blocks[block] == (parents[at], tokens)
        # The same hashes and group as vLLM's own events.
        assert world.router.places[block] == {("CPU", "LOCAL", 0), ("GPU", None, 0)}


@pytest.mark.parametrize("store", ["eager", "on_eviction"])
def test_what_is_evicted_is_told(store, start, endpoint, router):
    """kvistd has room for a few prompts: whatever it drops, the router hears of; what it has stays told."""
    with Daemon(pool__bytes="4MiB") as daemon:
        world = World(start, daemon, endpoint, router, store=store)
        while daemon.status()["evictions"] < 20:
            assert len(world.asked) < 400
            for _ in range(10):
                world.prefill(prompt(len(world.asked), 170), max_tokens=1)
        world.settle()
        assert world.router.removed > 0 and world.truth()


def test_what_is_cleared_is_told(world):
    world.prefill(prompt(1, 160))
    world.prefill(prompt(2, 160))
    world.settle()
    assert world.truth()
    world.daemon.clear()
    world.settle()
    assert not world.truth() and not world.router.told()


def test_what_others_stored_is_told_when_it_is_found(world, start):
    other = start(world.daemon, Shape(blocks=64, chunk=CHUNK, block=BLOCK))
    other.prefill(prompt(7, 160))
    other.settle()
    stored(other, world.router)
    request = world.prefill(prompt(7, 160))
    world.settle()
    assert world.engine.loaded_tokens() == 160
    told = [maybe_convert_block_hash(block) for block in world.engine.requests[request].block_hashes[:10]]
    assert all(world.router.beyond_gpu(block) == {("CPU", "LOCAL")} for block in told)


def test_what_moves_to_the_ssd_is_told(start, endpoint, router, tmp_path):
    with Daemon(ssd__enabled="true", ssd__path=str(tmp_path / "ssd"), ssd__capacity="64MiB", ssd__gate="false") as daemon:
        world = World(start, daemon, endpoint, router)
        world.prefill(prompt(1, 160))
        world.settle()
        assert set(world.truth().values()) == {("CPU", "LOCAL")}
        tokens = tmp_path / "tokens"
        tokens.write_text(json.dumps(prompt(1, 160)))
        daemon.ctl("move", "--tokens", str(tokens), "--from", "dram", "--to", "ssd")
        world.settle()
        assert set(world.truth().values()) == {("STORAGE", "LOCAL")}
        # It is gone with a kill -9, and back with the next kvistd.
        world.daemon.kill()
        world.router.until(lambda: not world.router.told(), world.engine.step)
        world.daemon.start()
        world.client.wait_connected(20.0)
        world.settle()
        assert set(world.truth().values()) == {("STORAGE", "LOCAL")}


def test_a_kvistd_that_is_away_has_nothing(world):
    world.prefill(prompt(1, 160))
    world.settle()
    world.daemon.kill()
    world.router.until(lambda: not world.router.told(), world.engine.step)
    world.daemon.start()
    world.daemon.wait_idle(sessions=2)  # the worker's, too
    world.engine.reset()
    world.prefill(prompt(1, 160))
    world.settle()
    assert len(world.truth()) >= 8


def test_a_kvistd_that_stands_delays_nothing_and_loses_nothing(start, daemon, endpoint, router):
    world = World(start, daemon, endpoint, router, lookup_timeout_s=0.25)
    world.prefill(prompt(1, 160))
    world.settle()
    world.daemon.pause()
    try:
        for number in range(3):
            world.prefill(prompt(20 + number, 160))
        for _ in range(50):
            world.engine.step()
    finally:
        world.daemon.resume()
    world.settle()


@pytest.mark.parametrize("clears_gpu_only", [False, True])
def test_a_reset_of_vllms_own_cache_takes_nothing_from_kvistd(clears_gpu_only, world):
    world.router.clears_gpu_only = clears_gpu_only
    world.prefill(prompt(1, 160))
    world.settle()
    told = world.router.told()
    world.engine.reset()
    world.settle()
    assert world.router.told() >= told > set()


@pytest.mark.parametrize("clears_gpu_only", [False, True])
def test_after_a_reset_for_new_weights_nothing_is_told_that_this_engine_would_not_find(clears_gpu_only, world):
    world.router.clears_gpu_only = clears_gpu_only
    world.prefill(prompt(1, 160))
    world.settle()
    world.prefill(prompt(2, 160))  # its store is under way, or has just ended
    assert world.engine.scheduler.reset_prefix_cache(reset_connector=True)
    world.asked.clear()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        world.engine.step()
        world.router.hear(0.002)
    assert not world.router.told()
    world.engine.prefill(prompt(1, 160))  # the same hashes under another key
    world.router.until(lambda: len(world.router.told()) >= 10, world.engine.step)
    world.daemon.clear()
    world.router.until(lambda: not world.router.told(), world.engine.step)


def test_what_is_stored_again_before_it_was_found_gone_is_told(world):
    for number in range(6):
        world.prefill(prompt(1, 160))
        world.settle()
        world.engine.reset()
        world.daemon.clear()
        for _ in range(number):
            world.engine.step()


def test_parents_are_told_before_children_when_a_long_prompt_comes_back(start, endpoint, router, tmp_path):
    with Daemon(ssd__enabled="true", ssd__path=str(tmp_path / "ssd"), ssd__capacity="256MiB", ssd__gate="false") as daemon:
        shape = Shape(blocks=700, max_model_len=10_000, step_tokens=2048)
        world = World(start, daemon, endpoint, router, shape)
        world.prefill(prompt(1, 9000), max_tokens=1)
        world.settle()
        assert len(world.truth()) == 562  # three questions of 96 chunks at least
        world.client.flush(deadline_s=30.0)
        daemon.kill()
        router.until(lambda: not router.told(), world.engine.step)
        daemon.start()
        world.client.wait_connected(20.0)
        world.settle()
        assert len(world.truth()) == 562


@pytest.mark.parametrize("windows", [(48, 0), (0, 48), (32, 0, 64)])
def test_models_with_windows_are_told_by_the_group_that_needs_whole_prefixes(windows, start, endpoint, router):
    with Daemon(pool__bytes="4MiB") as daemon:
        world = World(start, daemon, endpoint, router, Shape(blocks=96, windows=windows))
        while daemon.status()["evictions"] < 20:
            assert len(world.asked) < 400
            for _ in range(10):
                world.prefill(prompt(len(world.asked), 330), max_tokens=1)
        world.settle()
        assert router.removed > 0 and world.truth()


def test_no_more_is_known_than_there_is_room_for(world, monkeypatch):
    monkeypatch.setattr(kvist.placements, "_CHUNKS", 30)
    for number in range(20):
        world.prefill(prompt(number, 160))
    world.engine.settle()
    # 60 of 16 tokens; and what is asked for and about to leave.
    world.router.until(lambda: 30 < len(world.router.told()) <= 60, world.engine.step)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        world.engine.step()
        world.router.hear(0.002)
    assert 30 < len(world.router.told()) <= 60


def test_salts_adapters_and_images_are_told_as_vllm_tells_them(world):
    identity = Identity(salt="tenant", lora="adapter", images=(("cat", 40, 8),))
    request = world.engine.requests[world.engine.prefill(prompt(1, 160), identity=identity)]
    hashes = [maybe_convert_block_hash(block) for block in request.block_hashes[:10]]
    router = world.router
    router.until(lambda: all(router.beyond_gpu(block) for block in hashes), world.engine.step)
    told = [router.extra_keys[block, "CPU"] for block in hashes]
    assert told == [router.extra_keys[block, "GPU"] for block in hashes]
    assert "tenant" in told[0] and ["cat", 8] in told[2]


def test_a_kvistd_that_does_not_know_the_question_is_left_alone(world, monkeypatch):
    world.prefill(prompt(1, 160))
    world.settle()
    asked = []
    start, result = kvist.Client.where_start, kvist.Client.where_result

    def where_start(self, keys, **how):
        asked.append(keys)
        return start(self, keys, **how)

    def where_result(self, op, count, timeout_s=0.0):
        if result(self, op, count, timeout_s) is not None:
            raise KvistError(Status.INVALID_ARGUMENT, "no such request: opcode 15")

    monkeypatch.setattr(kvist.Client, "where_start", where_start)
    monkeypatch.setattr(kvist.Client, "where_result", where_result)
    world.router.until(lambda: bool(asked) and not world.router.told(), world.engine.step)
    before = len(asked)
    for number in range(3):
        world.prefill(prompt(30 + number, 160))
    world.engine.settle()
    assert len(asked) == before <= 4
    monkeypatch.undo()  # another kvistd, after a minute
    world.engine.connector._scheduler._events._placements._asks_from = 0.0
    world.prefill(prompt(40, 160))
    world.asked = world.asked[-1:]
    world.settle()
    assert world.truth()
