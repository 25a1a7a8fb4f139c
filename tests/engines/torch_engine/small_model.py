"""A model that computes thousands of tokens a second, prompts for it, and what the engine must answer."""

import functools
import random
from collections.abc import Sequence

import torch
from torch_engine.engine import Answer, Engine
from torch_engine.model import BEGIN_OF_TEXT, Model, ModelConfig

ANSWER_TOKENS = 12
CHUNK_TOKENS = 32


@functools.cache
def small_model() -> Model:
    return Model(ModelConfig(layers=2, model_dim=64, heads=4, kv_heads=2, head_dim=16, ffn_dim=176, context_max=2048))


def random_tokens(count: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(BEGIN_OF_TEXT) for _ in range(count)]


def some_prompts() -> list[tuple[int, ...]]:
    """Of which some share beginnings."""
    lengths = ((200, 37, 1), (200, 64, 2), (90, 1, 3), (0, 90, 4), (200, 5, 5), (0, 1, 6))
    return [tuple(random_tokens(shared, 100) + random_tokens(own, seed)) for shared, own, seed in lengths]


@functools.cache
def alone(prompt: tuple[int, ...], answer_tokens: int = ANSWER_TOKENS) -> Answer:
    """The answer of an engine without kvist that has room, no past and nothing else to do."""
    with Engine(small_model()) as engine:
        engine.submit(prompt, answer_tokens)
        return engine.run()[0]


def run_bounded(engine: Engine, steps_max: int = 5000) -> list[Answer]:
    """Engine.run, which may not go on for ever; in order of submission."""
    for _ in range(steps_max):
        if not engine.step():
            return sorted(engine.take_answers(), key=lambda answer: answer.id)
    raise AssertionError(f"requests are left after {steps_max} steps")


def ask(engine: Engine, prompts: Sequence[tuple[int, ...]], answer_tokens: int = ANSWER_TOKENS) -> list[Answer]:
    """All at once."""
    for prompt in prompts:
        engine.submit(prompt, answer_tokens)
    return run_bounded(engine)


def check_as_alone(
    answers: Sequence[Answer], prompts: Sequence[tuple[int, ...]], answer_tokens: int = ANSWER_TOKENS
) -> None:
    """Bit for bit."""
    assert len(answers) == len(prompts)
    for answer, prompt in zip(answers, prompts, strict=True):
        wanted = alone(prompt, answer_tokens)
        assert answer.tokens == wanted.tokens
        assert torch.equal(answer.logits.view(torch.int32), wanted.logits.view(torch.int32)), (
            f"request {answer.id} has other logits"
        )


def check_at_rest(engine: Engine) -> None:
    """Nothing is used and nothing is under way."""
    engine.forget_local_pages()
    for _ in range(1000):
        engine.kvist.poll()
        if engine.kvist.copies_under_way == 0:
            break
        engine.kvist.wait_for_pages(0.1)
    assert engine.kvist.copies_under_way == 0
    assert engine.pool.in_use == 0
    assert engine.kvist.stats.bugs == 0
