"""Models with recurrent layers: a hit ends where vLLM had a state, which is loaded with it; every state that a step goes on from is looked at."""

import dataclasses
from array import array

import kvist
import pytest
from engine import WrongBytes
from kvist.vllm.stores import Stores
from preemption_rules_test import KvistWorld
from scenarios import asked, prompt
from settings import STATES, Shape

SHAPE = Shape(blocks=64, windows=(0, STATES), chunk=16)
END = prompt(20, 10)  # of prompts that are asked for again: what is new in them


@pytest.fixture
def begin(daemon, start):
    return lambda shape=SHAPE, **extra: start(daemon, shape, **extra)


def stored(engine, ledger, tokens: list[int], max_tokens: int = 1) -> list[int]:
    """In kvist, and no longer in vLLM's own cache: what was asked, and what was said."""
    request = engine.prefill(tokens, max_tokens=max_tokens)
    engine.settle(ledger)
    engine.reset()
    return list(engine.requests[request].all_token_ids)


def loaded(engine, ledger, tokens: list[int]) -> int:
    """Tokens that are loaded for a prompt, of which vLLM's own cache has nothing."""
    engine.loaded_tokens()
    engine.prefill(tokens, max_tokens=1)
    engine.settle(ledger)
    engine.reset()
    return engine.loaded_tokens()


@pytest.mark.parametrize("windows", [(0, STATES), (STATES, 0), (0, 48, STATES, STATES)])
def test_hit_ends_at_a_state(windows, begin, ledger):
    """Prompts come in steps of 96 tokens, and vLLM ends one at the last full block before the end."""
    engine = begin(dataclasses.replace(SHAPE, windows=windows))
    stored(engine, ledger, prompt(1, 200))
    assert loaded(engine, ledger, prompt(1, 200) + END) == 192
    assert loaded(engine, ledger, prompt(1, 200)[:150] + END) == 96
    assert loaded(engine, ledger, prompt(1, 200)[:90] + END) == 0


def test_a_token_is_left_to_compute(begin, ledger):
    """vLLM computes the last token of a prompt that hits as a whole: from the state before it, not from that after it."""
    engine = begin()
    stored(engine, ledger, prompt(1, 192))
    assert loaded(engine, ledger, prompt(1, 192) + END) == 192
    assert loaded(engine, ledger, prompt(1, 192)) == 176


def test_a_whole_prompt_would_be_seen(begin, ledger):
    engine = begin()
    stored(engine, ledger, prompt(1, 192))
    engine.connector._scheduler._leave_a_token = False
    with pytest.raises(WrongBytes, match="the state after 191 tokens"):
        loaded(engine, ledger, prompt(1, 192))


def test_states_of_what_is_said(begin, ledger):
    """The next turn of a conversation goes on from the last block that was decoded."""
    engine = begin()
    said = stored(engine, ledger, prompt(1, 40), max_tokens=30)
    assert len(said) == 70
    assert loaded(engine, ledger, said + END) == 64


def test_chunks_are_blocks_by_default(begin, ledger):
    """Larger ones miss most states."""
    engine = begin(chunk_tokens=0)
    stored(engine, ledger, prompt(1, 150))
    assert loaded(engine, ledger, prompt(1, 150) + END) == 144
    engine = begin(chunk_tokens=64)
    stored(engine, ledger, prompt(3, 150))
    assert loaded(engine, ledger, prompt(3, 150) + END) == 0  # 96 and 144 are inside chunks of 64


def test_late_load_is_computed(daemon, ledger, start):
    """After a hit in vLLM's own cache, of whose end nobody has the state any more when the load has been planned."""
    world = KvistWorld(daemon, ledger, start)
    engine = start(daemon, SHAPE, load_timeout_s=0.2)
    stored(engine, ledger, prompt(1, 200))
    engine.prefill(prompt(1, 200)[:100] + END, max_tokens=1)
    engine.settle(ledger)
    with world.late():
        (request,) = asked(engine, world, prompt(1, 200) + END)
        engine.until(lambda: engine.status(request).name.startswith("FINISHED"), 30)
    engine.settle(ledger)
    assert len(engine.outputs[request]) == 4


@pytest.mark.parametrize("bug", ["another block", "too late"])
def test_wrong_states_would_be_seen(bug, begin, ledger, monkeypatch):
    real = Stores.states
    waiting: list = []

    def states(self, tracked, made, plan):
        if bug == "another block":
            return real(self, tracked, [(table, block + 1, tokens) for table, block, tokens in made], plan)
        waiting.append((tracked, list(made)))
        if len(waiting) > 6:  # the block has another owner by now
            real(self, *waiting.pop(0), plan)

    monkeypatch.setattr(Stores, "states", states)
    engine = begin(dataclasses.replace(SHAPE, blocks=26))
    with pytest.raises(WrongBytes, match="the state after"):
        for number in range(8):
            stored(engine, ledger, prompt(number, 200))
        for number in range(8):
            loaded(engine, ledger, prompt(number, 200) + END)


def test_a_state_that_is_not_loaded_would_be_seen(begin, ledger, monkeypatch):
    real = kvist.Client.load

    def load(self, lease, pages, **how):
        pages = array("I", [kvist.NO_PAGE]) * len(pages) if how["group"] == 1 else pages
        return real(self, lease, pages, **how)

    engine = begin()
    stored(engine, ledger, prompt(1, 200))
    monkeypatch.setattr(kvist.Client, "load", load)
    with pytest.raises(WrongBytes, match="the state after 192 tokens"):
        loaded(engine, ledger, prompt(1, 200) + END)
