"""What a connector is for: what was computed once is loaded, right, and only by those who may share it."""

import random

import pytest

from contents import Identity
from daemon import Daemon
from layouts import LAYOUTS, Layout
from settings import Shape


def prompt(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(3, 512) for _ in range(length)]


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
