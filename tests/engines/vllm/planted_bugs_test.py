"""KvistConnector itself with one bug planted below it, in kvist.Client: the tests see each."""

import kvist
import pytest
from kvist.status import Status
from preemption_rules_test import KvistWorld
from scenarios import SCENARIOS, asked, pages_of_late_loads_are_kept, prompt, stored
from worker import WrongBytes


@pytest.fixture
def world(daemon, ledger, start):
    return KvistWorld(daemon, ledger, start)


def test_load_into_other_pages(world, monkeypatch):
    real = kvist.Client.load

    def load(self, lease, pages, **how):
        pages[0], pages[1] = pages[1], pages[0]
        return real(self, lease, pages, **how)

    engine = world.start()
    stored(engine, world, prompt(1, 160))
    monkeypatch.setattr(kvist.Client, "load", load)
    with pytest.raises(WrongBytes):
        engine.prefill(prompt(1, 160) + prompt(2, 10))


def test_load_said_to_be_over_too_early(world, monkeypatch):
    """WrongBytes: what the request is to go on from isn't there yet."""
    engine = world.start()
    stored(engine, world, prompt(1, 160))
    real = kvist.Client.poll

    def poll(self, op):
        result = real(self, op)
        return result if result.status != Status.PENDING else result._replace(status=Status.OK, pages_released=True)

    with world.late(), pytest.raises(WrongBytes):
        asked(engine, world, prompt(1, 160) + prompt(2, 10))
        monkeypatch.setattr(kvist.Client, "poll", poll)
        engine.run()


def test_late_load_said_to_be_through(world, monkeypatch):
    real = kvist.Client.poll

    def poll(self, op):
        result = real(self, op)
        return result._replace(status=Status.CANCELLED, pages_released=True)

    def begun() -> None:
        monkeypatch.setattr(kvist.Client, "poll", poll)

    with pytest.raises(AssertionError, match="free while kvistd may write"):
        pages_of_late_loads_are_kept(world, begun)


def test_stores_not_stopped(world, monkeypatch):
    monkeypatch.setattr(kvist.Client, "cancel", lambda self, op: None)
    with pytest.raises(WrongBytes):
        SCENARIOS["store_reads_given_pages"](world)


def test_leases_not_released(world, monkeypatch):
    monkeypatch.setattr(kvist.Client, "release", lambda self, lease: None)
    with pytest.raises(AssertionError, match="never ended.*leases"):
        engine = world.start()
        stored(engine, world, prompt(1, 160))
        engine.prefill(prompt(1, 160))
        engine.settle(world.ledger, limit_s=0.5)


@pytest.mark.parametrize("forgotten", ["salt", "lora"])
def test_keys_without(forgotten, world, monkeypatch):
    real = kvist.Chain.__init__

    def without(self, chunk_tokens, **how):
        real(self, chunk_tokens, **{**how, forgotten: ""})

    monkeypatch.setattr(kvist.Chain, "__init__", without)
    with pytest.raises(AssertionError):
        SCENARIOS["salt_ignored"](world)


def test_keys_without_images(world, monkeypatch):
    monkeypatch.setattr(kvist.Chain, "bind", lambda self, extra: None)
    with pytest.raises(AssertionError):
        SCENARIOS["salt_ignored"](world)


def test_store_of_a_page_too_far(world, monkeypatch):
    """Pages of what isn't computed yet, as with drafts that are rejected."""
    real = kvist.Client.store

    def store(self, keys, pages, **how):
        pages[-1] = pages[-1] % 40 + 1
        return real(self, keys, pages, **how)

    monkeypatch.setattr(kvist.Client, "store", store)
    engine = world.start()
    with pytest.raises(WrongBytes):
        stored(engine, world, prompt(1, 160))
        engine.prefill(prompt(1, 160) + prompt(2, 10))
