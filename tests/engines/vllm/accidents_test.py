"""The daemon is absent, gone, back, of another version, or full: the engine goes on, computes what it must, and comes back by itself."""

import contextlib
import logging
import os
import socket
import threading
import time

import pytest
from kvist_daemon import Daemon
from preemption_rules_test import KvistWorld
from scenarios import asked, pages_of_late_loads_are_kept, prompt, steps, stored
from settings import Shape

RETURN_S = 5.0  # "back within 5 s"


class World:
    """What scenarios need of a world, with one kvistd."""

    def __init__(self, daemon, ledger) -> None:
        self.daemon, self.ledger = daemon, ledger

    def hold(self) -> None:
        asked = self.ledger.lookups
        self.daemon.wait_status(lambda status: status["lookups"] >= asked)
        self.daemon.pause()

    def settle(self, engine) -> None:
        engine.settle(self.ledger)


def hits_within(engine, ledger, limit_s: float) -> None:
    """Prompts are stored and loaded again before the time is over."""
    end = time.monotonic() + limit_s
    number = 1000
    while True:
        number += 1
        tokens = prompt(number, 100)
        engine.prefill(tokens, max_tokens=1)
        engine.settle(ledger)
        engine.reset()
        engine.loaded_tokens()
        engine.prefill(tokens, max_tokens=1)
        engine.settle(ledger)
        if engine.loaded_tokens() == 96:
            return
        assert time.monotonic() < end, "no hits although kvistd is there"
        time.sleep(0.05)


@pytest.fixture
def logs(caplog):
    """What kvist logs, also through vLLM's loggers, which don't propagate."""
    caplog.set_level(logging.INFO)
    loggers = [logging.getLogger(name) for name in ("vllm", "kvist", "kvist.vllm", "vllm.kvist")]
    for logger in loggers:
        logger.addHandler(caplog.handler)
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.INFO)
    yield caplog
    for logger, level in zip(loggers, before):
        logger.removeHandler(caplog.handler)
        logger.setLevel(level)


def told(logs) -> list[str]:
    """Distinct records: a handler on a parent hears them, too."""
    return [
        message
        for _, message in dict.fromkeys((id(r), r.getMessage()) for r in logs.records if r.levelno >= logging.WARNING)
        if "kvistd" in message
    ]


def test_absent_at_start(daemon, ledger, start, logs):
    daemon.kill()
    engine = start(daemon)
    engine.prefill(prompt(1, 200))
    engine.settle(ledger)
    assert engine.loaded_tokens() == 0
    for i in range(5):
        engine.prefill(prompt(i, 50))
    assert len(told(logs)) == 1, told(logs)
    daemon.start()
    hits_within(engine, ledger, RETURN_S + 5)


def test_gone_and_back(daemon, ledger, start, logs):
    engine = start(daemon)
    stored(engine, World(daemon, ledger), prompt(1, 200))
    daemon.kill()
    for i in range(5):
        engine.prefill(prompt(1, 200) + prompt(i, 50))
    engine.settle(ledger)
    end = time.monotonic() + RETURN_S
    while not told(logs) and time.monotonic() < end:
        engine.step()
        time.sleep(0.01)
    engine.prefill(prompt(1, 200))
    assert len(told(logs)) == 1, told(logs)
    daemon.start()
    hits_within(engine, ledger, RETURN_S + 5)


def test_killed_while_loading_touches_no_other(daemon, ledger, start):
    """The requests beside it go on step by step; it is computed."""
    engine = start(daemon, Shape(blocks=96))
    tokens = prompt(1, 200)
    stored(engine, World(daemon, ledger), tokens)
    other = engine.add(prompt(2, 60), max_tokens=200)
    steps(engine, 3)
    (loads,) = asked(engine, World(daemon, ledger), tokens + prompt(3, 20))
    daemon.kill()
    said = len(engine.outputs[other])
    count = 0
    while engine.status(loads).name == "WAITING_FOR_REMOTE_KVS":
        engine.step()
        count += 1
        assert len(engine.outputs[other]) == said + count, "the other request lost a step"
        assert count < 100, "the failed load doesn't come back"
    engine.run()
    assert engine.requests[other].num_preemptions == 0
    assert engine.status(loads).name == "FINISHED_LENGTH_CAPPED"
    assert len(engine.outputs[loads]) == 4
    engine.settle(ledger)


@pytest.mark.parametrize("load_timeout_s", [0.05, 5.0])
def test_pages_of_late_loads_are_kept(load_timeout_s, daemon, ledger, start):
    """Also past the load's deadline."""
    world = KvistWorld(daemon, ledger, start)
    world.start = lambda shape: start(daemon, shape, lookup_timeout_s=2.0, load_timeout_s=load_timeout_s)
    pages_of_late_loads_are_kept(world)


def test_late_load_is_computed(daemon, ledger, start):
    """A load that takes longer than load_timeout_s is given up; its pages are nobody's until kvistd is through with them."""
    engine = start(daemon, Shape(blocks=64), load_timeout_s=0.2)
    tokens = prompt(1, 200)
    world = World(daemon, ledger)
    stored(engine, world, tokens)
    (loads,) = asked(engine, world, tokens + prompt(3, 20))
    engine.until(lambda: engine.status(loads).name.startswith("FINISHED"), 30)
    for i in range(4):
        engine.prefill(prompt(20 + i, 150))
    daemon.resume()
    engine.settle(ledger)
    engine.step()
    assert len(engine.outputs[loads]) == 4


def test_late_load_is_computed_in_hybrid_models(daemon, ledger, start):
    engine = start(daemon, Shape(blocks=96, windows=(0, 64)), load_timeout_s=0.2)
    tokens = prompt(1, 200)
    world = World(daemon, ledger)
    stored(engine, world, tokens)
    (loads,) = asked(engine, world, tokens + prompt(3, 20))
    engine.until(lambda: engine.status(loads).name.startswith("FINISHED"), 30)
    daemon.resume()
    engine.settle(ledger)
    assert len(engine.outputs[loads]) == 4


@pytest.mark.parametrize("window", [0, 64])
def test_failed_load_inside_the_step_leaves_no_hits(window, daemon, ledger, start):
    """vLLM 0.32 keeps the hashes of blocks whose load inside a step failed, for the request to compute them anew: if that one is aborted
    (or preempted) first, nobody may hit them. Nor may any of its stores be kept, of which a step makes two where there is a window."""
    shape = Shape(blocks=64, step_tokens=256, windows=(window,))
    engine = start(daemon, shape, load="layerwise", load_timeout_s=0.05, lookup_timeout_s=2.0)
    tokens = prompt(1, 200)
    world = World(daemon, ledger)
    stored(engine, world, tokens)
    more = tokens + prompt(2, 120)  # which the step computes from what it loads
    loads = engine.add(more)
    world.hold()
    engine.until(lambda: engine.status(loads).name == "RUNNING")
    assert engine.last_connector_output.invalid_block_ids
    engine.abort(loads)
    daemon.resume()
    engine.prefill(tokens + prompt(3, 20))
    engine.settle(ledger)
    engine.reset()
    engine.prefill(more + prompt(3, 20))
    engine.settle(ledger)


def test_full_pool_stores_what_fits(ledger, start):
    with Daemon(pool__bytes="4MiB", pool__slab_bytes="2MiB") as daemon:
        engine = start(daemon, Shape(blocks=160, layers=4))
        for i in range(30):
            engine.prefill(prompt(i, 800), max_tokens=1)
            engine.settle(ledger)
            engine.reset()
        engine.prefill(prompt(29, 800), max_tokens=1)
        engine.settle(ledger)


def test_other_space_same_instance_is_refused(daemon, ledger, start, logs):
    """Two engines of one name with different pages can't be one instance: the second one runs without, and says why."""
    start(daemon, Shape(), instance="same")
    engine = start(daemon, Shape(chunk=64), instance="same")
    stored(engine, World(daemon, ledger), prompt(1, 200))
    engine.prefill(prompt(1, 200))
    engine.settle(ledger)
    assert engine.loaded_tokens() == 0
    assert any("same" in message for message in told(logs)), told(logs)


@pytest.mark.parametrize("answers", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", None], ids=["hangs up", "talks", "is silent"])
def test_something_else_behind_the_socket(answers, daemon, ledger, start, logs):
    """What isn't a kvistd of this version costs one warning and no request; the right one is found when it comes."""
    daemon.kill()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(daemon.socket)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if answers else socket.SOCK_SEQPACKET)
    server.bind(daemon.socket)
    server.listen(16)
    server.settimeout(0.05)
    over = threading.Event()
    held = []

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                peer, _ = server.accept()
                if answers is None:
                    held.append(peer)
                    continue
                with contextlib.suppress(OSError):
                    peer.sendall(answers)
                peer.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        engine = start(daemon)
        engine.prefill(prompt(1, 200))
        engine.prefill(prompt(1, 200))
        engine.settle(ledger)
        assert engine.loaded_tokens() == 0
        assert len(told(logs)) == 1, told(logs)
    finally:
        over.set()
        thread.join()
        server.close()
        for peer in held:
            peer.close()
        os.unlink(daemon.socket)
    daemon.start()
    hits_within(engine, ledger, RETURN_S + 5)


def test_pages_survive_the_end_of_an_engine(daemon, ledger, start):
    """Another engine, started later, with the same model: hits."""
    engine = start(daemon)
    tokens = prompt(1, 200)
    engine.prefill(tokens)
    engine.settle(ledger)
    engine.close()
    daemon.wait_idle(sessions=0)
    again = start(daemon)
    again.prefill(tokens)
    assert again.loaded_tokens() == 192
    again.settle(ledger)


def test_load_failure_policy_is_warned_of(daemon, model, logs):
    import settings
    from engine import Engine

    transfer = {**settings.transfer_config(daemon.socket, 32), "kv_load_failure_policy": "fail"}
    with Engine(model, Shape(), transfer, "policy"):
        pass
    assert any(
        "kv_load_failure_policy" in r.getMessage() and "recompute" in r.getMessage()
        for r in logs.records
        if r.levelno >= logging.WARNING
    )
