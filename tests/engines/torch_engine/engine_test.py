"""The engine and its calls to kvist, against a fake that is slow, late and unreliable on demand."""

import random

import pytest
from kvist import Status
from small_model import (
    ANSWER_TOKENS,
    CHUNK_TOKENS,
    alone,
    ask,
    check_as_alone,
    check_at_rest,
    random_tokens,
    run_bounded,
    small_model,
    some_prompts,
)
from torch_engine.engine import Engine, EngineOptions
from torch_engine.kvist_cache import KvistOptions
from torch_engine.model import PAGE_TOKENS

PROMPTS = some_prompts()
KVIST = KvistOptions(chunk_tokens=CHUNK_TOKENS)
TIGHT = 20 * PAGE_TOKENS  # holds one of the long prompts and its answer, or several short ones until their answers grow


def engine_with(**options):
    return Engine(small_model(), EngineOptions(**options))


@pytest.mark.parametrize("batch_tokens", [1, 7, 64, 512])
def test_answers_are_the_same_alone_together_in_small_chunks_and_from_shared_pages(batch_tokens):
    with engine_with(batch_tokens=batch_tokens) as engine:
        check_as_alone(ask(engine, PROMPTS), PROMPTS)
        assert engine.pool.in_use == 0
        again = ask(engine, PROMPTS)
        check_as_alone(again, PROMPTS)
        assert sum(answer.local_tokens for answer in again) > 700
        engine.forget_local_pages()
        assert sum(answer.local_tokens for answer in ask(engine, PROMPTS)) < 600


def test_preempts_when_pages_run_out_and_still_answers_the_same():
    with engine_with(kv_tokens=TIGHT) as engine:
        check_as_alone(ask(engine, PROMPTS), PROMPTS)
    crowd = [tuple(random_tokens(30, seed)) for seed in range(4)]
    with engine_with(kv_tokens=8 * PAGE_TOKENS) as engine:
        check_as_alone(ask(engine, crowd, 40), crowd, 40)
        assert engine.stats.preemptions > 0
        assert engine.pool.in_use == 0


def test_refuses_what_it_has_no_room_for():
    with engine_with(kv_tokens=64) as engine:
        for prompt, answer_tokens, why in (
            ([], 1, "needs a prompt"),
            ([1], 0, "room for an answer"),
            ([1, 257], 1, "vocabulary of 257"),
        ):
            with pytest.raises(ValueError, match=why):
                engine.submit(prompt, answer_tokens)
        with pytest.raises(ValueError, match="65 tokens, context_max and kv_tokens allow 64"):
            engine.submit(random_tokens(60, 1), 5)
        engine.submit(random_tokens(60, 1), 4)
        assert len(run_bounded(engine)) == 1
    with pytest.raises(ValueError, match="at least a page"):
        engine_with(kv_tokens=15)
    with pytest.raises(ValueError, match="multiple of a page's 16 tokens"):
        engine_with(kvist=KvistOptions(chunk_tokens=24))


@pytest.mark.parametrize("polls", [0, 1, 4])
def test_stores_and_answers_the_same_from_what_it_loads(fake, polls):
    fake.behaviour.polls_until_end = fake.behaviour.polls_until_answer = polls
    with engine_with(kvist=KVIST) as engine:
        assert fake.observed.probes == 2 * small_model().config.layers  # through the tensor, found by the description
        check_as_alone(ask(engine, PROMPTS), PROMPTS)
        engine.forget_local_pages()
        computed = engine.stats.tokens_computed
        warm = ask(engine, PROMPTS)
        check_as_alone(warm, PROMPTS)
        assert sum(answer.kvist_tokens for answer in warm) > 200
        check_at_rest(engine)
    with engine_with(kvist=KVIST) as restarted:
        check_as_alone(ask(restarted, PROMPTS), PROMPTS)
        assert restarted.stats.tokens_computed < computed / 2
        check_at_rest(restarted)
    assert fake.leases == fake.ops == {}
    assert fake.observed.changed_under_store == 0


def test_decoded_tokens_are_stored_when_their_chunk_is_full(fake):
    prompt = tuple(random_tokens(20, 1))
    with engine_with(kvist=KVIST) as engine:
        (answer,) = ask(engine, [prompt], 80)
        check_at_rest(engine)
        assert len(fake.chunks) == 99 // CHUNK_TOKENS  # the last token's KV is never computed
        longer = prompt + tuple(answer.tokens)
        (found,) = ask(engine, [longer])
        assert found.kvist_tokens == 96
        check_as_alone([found], [longer])


def test_notices_one_changed_value_in_a_loaded_page(fake):
    spoiled = []

    def spoil(memory, pages):
        if not spoiled:
            spoiled.append(pages[len(pages) // 2])
            memory.kv[0, spoiled[0], 1, 3, 0, 0].neg_()

    with engine_with(kvist=KVIST) as engine:
        ask(engine, PROMPTS)
        engine.forget_local_pages()
    with engine_with(kvist=KVIST, on_loaded=spoil) as engine:
        answers = ask(engine, PROMPTS)
    assert spoiled
    assert not answers[0].logits.equal(alone(PROMPTS[0]).logits)


@pytest.mark.parametrize("late", [0, 30])
@pytest.mark.parametrize("status", [Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE, Status.DATA_LOSS, Status.ABORTED])
@pytest.mark.parametrize("kv_tokens", [4096, TIGHT])
def test_computes_what_a_failed_load_doesnt_bring_and_leaves_its_pages_alone(fake, status, late, kv_tokens):
    with engine_with(kvist=KVIST) as engine:
        ask(engine, PROMPTS)
        engine.forget_local_pages()
    fake.behaviour.polls_until_end, fake.behaviour.polls_until_release = 2, late
    fake.behaviour.load_status = status
    with engine_with(kvist=KVIST, kv_tokens=kv_tokens) as engine:
        check_as_alone(ask(engine, PROMPTS), PROMPTS)
        assert engine.kvist.stats.loads_failed > 0
        check_at_rest(engine)
    assert fake.leases == fake.ops == {}


def test_offers_again_what_a_load_has_found_lost(fake):
    with engine_with(kvist=KVIST) as engine:
        ask(engine, PROMPTS[1:2])
        engine.forget_local_pages()
        stored = set(fake.chunks)
        assert len(stored) == (len(PROMPTS[1]) + ANSWER_TOKENS - 1) // CHUNK_TOKENS
        fake.behaviour.load_status, fake.behaviour.polls_until_end = Status.DATA_LOSS, 3
        engine.submit(PROMPTS[1], ANSWER_TOKENS)
        while fake.observed.loads == 0:
            assert engine.step()
        fake.chunks.clear()
        check_as_alone(run_bounded(engine), PROMPTS[1:2])
        assert engine.kvist.stats.loads_failed == 1
        check_at_rest(engine)
    assert set(fake.chunks) == stored


def test_computes_when_loads_are_refused(fake):
    with engine_with(kvist=KVIST) as engine:
        ask(engine, PROMPTS)
        engine.forget_local_pages()
        fake.behaviour.refuse_loads = True
        check_as_alone(ask(engine, PROMPTS), PROMPTS)
        check_at_rest(engine)
    assert fake.observed.loads == 0
    assert fake.leases == fake.ops == {}


def test_asks_again_when_kvist_is_behind_but_not_for_ever(fake):
    with engine_with(kvist=KvistOptions(chunk_tokens=CHUNK_TOKENS, lookup_deadline_s=1000.0)) as engine:
        ask(engine, PROMPTS)
        engine.forget_local_pages()
        fake.behaviour.lookups_refused = 20
        answers = ask(engine, PROMPTS)
        check_as_alone(answers, PROMPTS)
        assert sum(answer.kvist_tokens for answer in answers) > 200
        check_at_rest(engine)
    fake.behaviour.lookups_refused = 10**9
    with engine_with(kvist=KvistOptions(chunk_tokens=CHUNK_TOKENS, lookup_deadline_s=0.001)) as engine:
        answers = ask(engine, PROMPTS)
        check_as_alone(answers, PROMPTS)
        assert sum(answer.kvist_tokens for answer in answers) == 0
        check_at_rest(engine)
    assert fake.leases == fake.ops == {}


def test_goes_on_while_kvist_is_away_and_stores_when_it_is_back(fake):
    with engine_with(kvist=KVIST) as engine:
        fake.behaviour.away = True
        check_as_alone(ask(engine, PROMPTS), PROMPTS)
        assert not fake.chunks
        fake.behaviour.away = False
        engine.forget_local_pages()
        check_as_alone(ask(engine, PROMPTS), PROMPTS)
        check_at_rest(engine)
    assert fake.chunks


@pytest.mark.parametrize("polls", [1, 3, 50])
def test_under_pressure_never_gives_away_a_page_that_a_store_reads(fake, polls):
    """Preempted with stores under way: these go on, or are cancelled when their pages are needed."""
    fake.behaviour.polls_until_end = polls
    crowd = PROMPTS + [tuple(random_tokens(40, seed)) for seed in range(10, 14)]
    with engine_with(kvist=KVIST, kv_tokens=TIGHT, batch_tokens=64) as engine:
        check_as_alone(ask(engine, crowd, 40), crowd, 40)
        assert engine.stats.preemptions > 0
        check_at_rest(engine)
    assert (fake.observed.cancelled > 0) == (polls == 50)
    assert fake.observed.changed_under_store == 0
    assert fake.leases == fake.ops == {}


def test_an_aborted_request_leaves_nothing_behind_in_any_state(fake):
    with engine_with(kvist=KVIST) as engine:
        ask(engine, PROMPTS)
        engine.forget_local_pages()
    fake.behaviour.polls_until_answer, fake.behaviour.polls_until_end, fake.behaviour.polls_until_release = 2, 3, 5
    for steps in range(12):  # waiting for the lookup, loading, running
        with engine_with(kvist=KVIST) as engine:
            gone = engine.submit(PROMPTS[1], ANSWER_TOKENS)
            for _ in range(steps):
                engine.step()
            assert engine.abort(gone)
            assert not engine.abort(gone)
            check_as_alone(ask(engine, PROMPTS[:1]), PROMPTS[:1])  # its load may still write to pages
            check_at_rest(engine)
        assert fake.leases == fake.ops == {}
    assert fake.observed.changed_under_store == 0


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_answer_the_same_and_leave_nothing_behind(fake, seed):
    generator = random.Random(seed)
    print(f"seed {seed}")  # shown when it fails
    for _ in range(2):  # the second engine finds what the first has stored
        options = EngineOptions(
            kvist=KVIST,
            kv_tokens=generator.choice([TIGHT, 40 * PAGE_TOKENS, 4096]),
            batch_tokens=generator.choice([5, 48, 300]),
            sequences_max=generator.choice([2, 5, 16]),
        )
        asked, answers = {}, {}
        with Engine(small_model(), options) as engine:
            for _ in range(60):
                fake.behaviour.away = generator.random() < 0.1
                fake.behaviour.refuse_loads = generator.random() < 0.1
                fake.behaviour.lookups_refused = generator.choice([0, 0, 3])
                fake.behaviour.polls_until_answer = generator.randrange(3)
                fake.behaviour.polls_until_end = generator.choice([0, 1, 5, 30])
                fake.behaviour.polls_until_release = generator.choice([0, 8, 40])
                fake.behaviour.load_status = generator.choice([Status.OK, Status.OK, Status.OK, Status.DEADLINE_EXCEEDED])
                act = generator.random()
                if act < 0.25:
                    prompt = generator.choice(PROMPTS)
                    asked[engine.submit(prompt, ANSWER_TOKENS)] = prompt
                elif act < 0.30 and asked:
                    gone = generator.choice(list(asked))
                    if engine.abort(gone):
                        del asked[gone]
                elif act < 0.33:
                    engine.forget_local_pages()
                else:
                    engine.step()
                answers |= {answer.id: answer for answer in engine.take_answers()}
            answers |= {answer.id: answer for answer in run_bounded(engine)}
            check_as_alone([answers[request] for request in asked], list(asked.values()))
            fake.behaviour.away = False
            check_at_rest(engine)
        assert fake.leases == fake.ops == {}
        assert fake.observed.changed_under_store == 0
