"""Models with recurrent layers: a hit ends where vLLM had a state, which is loaded with it; every state that a step goes on from is looked at."""

import dataclasses
from array import array

import kvist
import pytest
from kvist.vllm.stores import Stores
from preemption_rules_test import KvistWorld
from scenarios import asked, prompt
from settings import STATES, Shape
from worker import WrongBytes

SHAPE = Shape(blocks=64, windows=(0, STATES), chunk=16, retention=0)
END = prompt(20, 10)  # of prompts that are asked for again: what is new in them


class Node:
    def __init__(self, daemon, ledger, start) -> None:
        self.daemon = daemon
        self.ledger = ledger
        self.begin = lambda shape=SHAPE, **extra: start(daemon, shape, **extra)

    def stored(self, engine, tokens: list[int], max_tokens: int = 1) -> list[int]:
        """In kvist, and no longer in vLLM's own cache: what was asked, and what was said. Each step is given time for its stores: two steps later
        vLLM may have given a state's block to somebody else, and who is slower stores none."""
        request = engine.add(tokens, max_tokens=max_tokens)
        while not engine.requests[request].is_finished():
            engine.step()
            self.daemon.wait_idle()
        engine.settle(self.ledger)
        engine.reset()
        return list(engine.requests[request].all_token_ids)

    def loaded(self, engine, tokens: list[int]) -> int:
        """Tokens that are loaded for a prompt, of which vLLM's own cache has nothing."""
        engine.loaded_tokens()
        engine.prefill(tokens, max_tokens=1)
        engine.settle(self.ledger)
        engine.reset()
        return engine.loaded_tokens()


@pytest.fixture
def node(daemon, ledger, start):
    return Node(daemon, ledger, start)


@pytest.mark.parametrize("windows", [(0, STATES), (STATES, 0), (0, 48, STATES, STATES)])
def test_hit_ends_at_a_state(windows, node):
    """Prompts come in steps of 96 tokens, and vLLM ends one at the last full block before the end."""
    engine = node.begin(dataclasses.replace(SHAPE, windows=windows))
    node.stored(engine, prompt(1, 200))
    assert node.loaded(engine, prompt(1, 200) + END) == 192
    assert node.loaded(engine, prompt(1, 200)[:150] + END) == 96
    assert node.loaded(engine, prompt(1, 200)[:90] + END) == 0


def test_a_token_is_left_to_compute(node):
    """vLLM computes the last token of a prompt that hits as a whole: from the state before it, not from that after it."""
    engine = node.begin()
    node.stored(engine, prompt(1, 192))
    assert node.loaded(engine, prompt(1, 192) + END) == 192
    assert node.loaded(engine, prompt(1, 192)) == 176


def test_a_whole_prompt_would_be_seen(node):
    engine = node.begin()
    node.stored(engine, prompt(1, 192))
    engine.connector._scheduler._leave_a_token = False
    with pytest.raises(WrongBytes, match="the state after 191 tokens"):
        node.loaded(engine, prompt(1, 192))


@pytest.mark.parametrize("ahead", [False, True])
def test_states_of_what_is_said(ahead, node):
    """The next turn of a conversation goes on from the last block that was decoded. Scheduled ahead a step's last token is known one step later."""
    engine = node.begin(dataclasses.replace(SHAPE, ahead=ahead))
    said = node.stored(engine, prompt(1, 40), max_tokens=30)
    assert len(said) == 70
    assert node.loaded(engine, said + END) == 64


def test_chunks_are_blocks_by_default(node):
    """Larger ones miss most states."""
    engine = node.begin(chunk_tokens=0)
    node.stored(engine, prompt(1, 150))
    assert node.loaded(engine, prompt(1, 150) + END) == 144
    engine = node.begin(chunk_tokens=64)
    node.stored(engine, prompt(3, 150))
    assert node.loaded(engine, prompt(3, 150) + END) == 0  # 96 and 144 are inside chunks of 64


def test_states_inside_a_step(node, monkeypatch):
    """Those of which vLLM tells, where a backend makes them; here all that its own cache keeps."""
    monkeypatch.setattr(Stores, "_state", staticmethod(lambda table, blocks: []))  # no others
    engine = node.begin(dataclasses.replace(SHAPE, retention=None))
    node.stored(engine, prompt(1, 200))
    assert node.loaded(engine, prompt(1, 200) + END) == 192
    assert node.loaded(engine, prompt(1, 200)[:150] + END) == 96


def test_late_load_is_computed(daemon, ledger, start):
    """After a hit in vLLM's own cache, of whose end nobody has the state any more when the load has been planned."""
    world, node = KvistWorld(daemon, ledger, start), Node(daemon, ledger, start)
    engine = node.begin(load_timeout_s=0.2)
    node.stored(engine, prompt(1, 200))
    engine.prefill(prompt(1, 200)[:100] + END, max_tokens=1)
    engine.settle(ledger)
    with world.late():
        (request,) = asked(engine, world, prompt(1, 200) + END)
        engine.until(lambda: engine.status(request).name.startswith("FINISHED"), 30)
    engine.settle(ledger)
    assert len(engine.outputs[request]) == 4


def test_taken_back_states_leave_the_rest(node):
    """A state's block may have another owner two steps later: its store is stopped, not that of the tokens' KV that the same step has filled."""
    engine = node.begin(dataclasses.replace(SHAPE, blocks=24), store_timeout_s=20.0)
    request = engine.add(prompt(1, 200), max_tokens=30)
    engine.until(lambda: engine.requests[request].num_computed_tokens)
    node.daemon.pause()
    stopped = []
    while not engine.requests[request].is_finished():
        stopped += engine.step().kv_connector_metadata.stop
    node.daemon.resume()
    engine.settle(node.ledger)
    assert stopped
    assert node.daemon.wait_idle()["chunks_stored"] >= 12


def test_a_state_of_another_block_would_be_seen(node, monkeypatch):
    engine = node.begin()
    real = Stores._state
    others = staticmethod(lambda table, blocks: [engine.pool.blocks[own.block_id + 1] for own in real(table, blocks)])
    monkeypatch.setattr(Stores, "_state", others)
    monkeypatch.setattr(Stores, "offered", lambda *_: None)
    node.stored(engine, prompt(1, 200))
    with pytest.raises(WrongBytes, match="the state after 192 tokens"):
        node.loaded(engine, prompt(1, 200) + END)


def test_a_state_that_is_not_loaded_would_be_seen(node, monkeypatch):
    real = kvist.Client.load

    def load(self, lease, pages, **how):
        pages = array("I", [kvist.NO_PAGE]) * len(pages) if how["group"] == 1 else pages
        return real(self, lease, pages, **how)

    engine = node.begin()
    node.stored(engine, prompt(1, 200))
    monkeypatch.setattr(kvist.Client, "load", load)
    with pytest.raises(WrongBytes, match="the state after 192 tokens"):
        node.loaded(engine, prompt(1, 200) + END)
