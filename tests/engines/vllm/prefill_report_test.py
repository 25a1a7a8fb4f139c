"""What kvistd is told of how long computing takes: the forward pass of a step that computes one prompt and nothing else."""

import time

from scenarios import prompt

import kvist

_PASS_S = 0.02


def reports(monkeypatch) -> list[tuple[int, int, float]]:
    """(first token, tokens, seconds) of each report."""
    told: list[tuple[int, int, float]] = []
    real = kvist.Client.report_prefill

    def report(client, first: int, tokens: int, *, took_s: float) -> None:
        told.append((first, tokens, took_s))
        real(client, first, tokens, took_s=took_s)

    monkeypatch.setattr(kvist.Client, "report_prefill", report)
    return told


def slow_passes(engine) -> None:
    for worker in engine.workers:
        real = worker._forward

        def forward(*arguments, real=real) -> None:
            time.sleep(_PASS_S)
            real(*arguments)

        worker._forward = forward


def test_the_pass_of_a_prompt_alone_is_reported(daemon, ledger, start, monkeypatch):
    told = reports(monkeypatch)
    engine = start(daemon)
    slow_passes(engine)
    engine.prefill(prompt(1, 200), max_tokens=5)
    engine.settle(ledger)
    assert [(first, tokens) for first, tokens, _ in told] == [(0, 96), (96, 96)]  # a step has 96; 8 tokens and decoding aren't told
    assert all(took_s >= _PASS_S for _, _, took_s in told)
    # Most of it is found, the rest computed.
    engine.reset()
    engine.prefill(prompt(1, 200) + prompt(2, 100), max_tokens=1)
    engine.settle(ledger)
    assert [(first, tokens) for first, tokens, _ in told[2:]] == [(192, 96)]


def test_a_pass_of_several_requests_tells_nothing(daemon, ledger, start, monkeypatch):
    told = reports(monkeypatch)
    engine = start(daemon)
    for i in range(3):
        engine.add(prompt(i, 30), max_tokens=3)  # in one step
    engine.run()
    engine.settle(ledger)
    assert told == []
