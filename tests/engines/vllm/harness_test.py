"""The harness itself: right with a right connector, and each planted bug is found."""

import random

import reference


def prompt(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(3, 512) for _ in range(length)]


def test_reference_hits_after_reset(start_reference):
    engine = start_reference()
    engine.prefill(prompt(1, 200))
    engine.settle()
    assert engine.loaded_tokens() == 0
    engine.reset()
    engine.prefill(prompt(1, 200))
    engine.settle()
    assert engine.loaded_tokens() == 192
    assert engine.outputs["r1"] == engine.outputs["r2"]
    assert not reference.LEASES
