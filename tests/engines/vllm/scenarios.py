"""The preemption rules of issue 4, one scenario each, for any connector: `world` starts engines and makes copies late.

Each scenario fails when its rule is broken: preemption_rules_test.py shows it with the planted bugs of reference.py.
"""

import random

from contents import Identity
from engine import Engine
from settings import VOCABULARY, Shape


def prompt(seed: int, length: int) -> list[int]:
    """Tokens that share nothing with another seed's."""
    rng = random.Random(seed)
    return [rng.randrange(3, VOCABULARY) for _ in range(length)]


def steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()


def stored(engine: Engine, world, tokens: list[int]) -> None:
    """`tokens` are in kvist, and no longer in vLLM's own cache."""
    engine.prefill(tokens, max_tokens=1)
    world.settle(engine)
    engine.reset()
    engine.loaded_tokens()


def asked(engine: Engine, world, *prompts: list[int], **how) -> list[str]:
    """Requests that wait for their KV: their loads have been begun, and end when `world` lets them."""
    ids = [engine.add(tokens, **how) for tokens in prompts]
    world.hold()
    engine.until(lambda: all(engine.status(i).name not in ("WAITING", "PREEMPTED") for i in ids))
    assert [engine.status(i).name for i in ids] == ["WAITING_FOR_REMOTE_KVS"] * len(ids)
    return ids


def running(engine: Engine, tokens: list[int]) -> str:
    """A request that has its blocks, however long its lookup took."""
    request_id = engine.add(tokens, max_tokens=64)
    engine.until(lambda: engine.requests[request_id].num_output_tokens > 0)
    return request_id


def store_reads_given_pages(world) -> None:
    """A store still reads pages that the scheduler has given to another request: by preemption, by the end of a request, by an abort."""
    engine = world.start(Shape(blocks=24, step_tokens=192, max_seqs=2))
    first, second, third = prompt(1, 150), prompt(2, 150), prompt(3, 150)
    with world.late():
        a = engine.add(first, max_tokens=60)
        engine.add(second, max_tokens=60)
        engine.add(third, max_tokens=60)
        world.hold()
        steps(engine, 3)
        engine.abort(a)
        steps(engine, 60)
    engine.run()
    world.settle(engine)
    for tokens in (first, second, third):  # what came to kvist is right, or nothing came
        engine.reset()
        engine.prefill(tokens, max_tokens=1)
        world.settle(engine)


def resumed_not_loaded(world) -> None:
    """A resumed request is loaded again, not computed: its blocks went to others meanwhile."""
    engine = world.start(Shape(blocks=21, step_tokens=192))
    first, second = prompt(1, 130), prompt(2, 130)
    engine.add(first, max_tokens=90)
    b = engine.add(second, max_tokens=90)
    engine.until(lambda: engine.requests[b].num_preemptions > 0)
    engine.run()
    assert engine.loaded_tokens() >= 32
    world.settle(engine)


def lease_leaks(world) -> None:
    """Whoever goes between lookup and load leaves no lease: aborted while it waits for blocks, preempted, aborted while its load is late."""
    engine = world.start(Shape(blocks=21, step_tokens=192))
    tokens = prompt(1, 160)
    stored(engine, world, tokens)
    runs = running(engine, prompt(2, 200))
    waits = engine.add(tokens + prompt(3, 20))  # is promised a hit, and there are no blocks for it
    steps(engine, 5)
    assert engine.status(waits).name == "WAITING"
    engine.abort(waits)
    never_asked = engine.add(tokens)
    engine.abort(never_asked)
    engine.abort(runs)
    with world.late():
        (loads,) = asked(engine, world, tokens + prompt(4, 20))
        engine.abort(loads)
        steps(engine, 3)
    world.settle(engine)
    skips = engine.prefill(tokens + prompt(5, 20), skip_reading=True)  # asked, and then vLLM doesn't want it
    assert engine.status(skips).name.startswith("FINISHED")
    world.settle(engine)
    world.no_leases()


def asked_again_moves_stores(world) -> None:
    """What was promised and then had to be computed is stored: being asked again and again moves no bookkeeping."""
    engine = world.start(Shape(blocks=21, step_tokens=192))
    tokens = prompt(1, 160)
    stored(engine, world, tokens)
    runs = running(engine, prompt(2, 200))
    waits = engine.add(tokens + prompt(3, 20), max_tokens=1)
    steps(engine, 6)
    assert engine.status(waits).name == "WAITING"
    world.lose_all()
    engine.abort(runs)
    engine.run()
    world.settle(engine)
    engine.reset()
    engine.loaded_tokens()
    engine.prefill(tokens + prompt(3, 20), max_tokens=1)
    assert engine.loaded_tokens() == 160
    world.settle(engine)


def freed_twice(world) -> None:
    """A request that is aborted while its load is under way gives each block back once; also when the load ends with the abort."""
    engine = world.start(Shape(blocks=48))
    tokens = prompt(1, 160)
    stored(engine, world, tokens)
    with world.late():
        (loads,) = asked(engine, world, tokens + prompt(2, 10))
        engine.abort(loads)
        steps(engine, 4)
    world.settle(engine)
    engine.reset()
    with world.late():
        (loads,) = asked(engine, world, tokens + prompt(3, 10))
    engine.until(lambda: loads in engine.scheduler.finished_recving_kv_req_ids)
    engine.abort(loads)  # reported, and not yet promoted
    world.settle(engine)
    engine.reset()


def load_into_freed_pages(world) -> None:
    """A load that is late doesn't land in pages that an abort has freed, nor in those of whom they were given to."""
    engine = world.start(Shape(blocks=32, step_tokens=192))
    tokens = prompt(1, 160)
    stored(engine, world, tokens)
    with world.late():
        (loads,) = asked(engine, world, tokens + prompt(2, 10))
        for i in range(3):
            engine.add(prompt(10 + i, 100), max_tokens=20)
        engine.abort(loads)
        steps(engine, 8)
    engine.run()
    world.settle(engine)
    engine.step()


def finished_load_of_gone_request(world) -> None:
    """No load is reported whose request has gone, and none twice: vLLM would end the engine."""
    engine = world.start(Shape(blocks=48))
    tokens = prompt(1, 160)
    stored(engine, world, tokens)
    with world.late():
        a, b = asked(engine, world, tokens + prompt(2, 10), tokens + prompt(3, 10), max_tokens=1)
        engine.abort(a)
        steps(engine, 2)
    engine.run()
    engine.prefill(prompt(4, 40))
    assert engine.status(b).name == "FINISHED_LENGTH_CAPPED"
    world.settle(engine)


def second_update_loads_again(world) -> None:
    """update_state_after_alloc comes twice for a loaded request: one load, one lease, and what was computed since stays."""
    engine = world.start(Shape(blocks=48, step_tokens=64))
    tokens = prompt(1, 160)
    stored(engine, world, tokens)
    before = world.loads(engine)
    request_id = engine.prefill(tokens + prompt(2, 100), max_tokens=40)
    world.settle(engine)
    assert world.loads(engine) == before + 1
    assert engine.status(request_id).name == "FINISHED_LENGTH_CAPPED"
    world.no_leases()


def drafts_stored(world) -> None:
    """KV of drafts that were rejected is in no chunk."""
    engine = world.start(Shape(blocks=64, drafts=3, step_tokens=192))
    rng = random.Random(5)

    def draft(_request, right: list[int]) -> list[int]:
        cut = rng.randrange(len(right) + 1)
        return right[:cut] + [rng.randrange(3, VOCABULARY) for _ in right[cut:]]

    engine.make_draft = draft
    whole: list[list[int]] = []
    for i in range(4):
        request_id = engine.prefill(prompt(i, 20 + i), max_tokens=120)
        whole.append(list(engine.requests[request_id].all_token_ids))
    world.settle(engine)
    engine.reset()
    engine.loaded_tokens()
    for tokens in whole:
        engine.prefill(tokens, max_tokens=1)
    assert engine.loaded_tokens() == sum((len(tokens) - 1) // 32 * 32 for tokens in whole)
    world.settle(engine)
    world.chunks_are(sum(len(tokens) // 32 for tokens in whole))


def salt_ignored(world) -> None:
    """Salts, adapters and images are different computations: no hit across them, and the right one within."""
    engine = world.start(Shape(blocks=64, step_tokens=192))
    tokens = prompt(1, 160)
    identities = [
        Identity(),
        Identity(salt="a"),
        Identity(salt="b"),
        Identity(lora="x"),
        Identity(lora="y"),
        Identity(lora="x", salt="a"),
        Identity(images=(("cat", 20, 30),)),
        Identity(images=(("dog", 20, 30),)),
    ]
    for identity in identities:
        engine.prefill(tokens, identity=identity, max_tokens=1)
        world.settle(engine)
        engine.reset()
    assert engine.loaded_tokens() == 0
    for identity in identities:
        engine.prefill(tokens, identity=identity, max_tokens=1)
        world.settle(engine)
        engine.reset()
    assert engine.loaded_tokens() == 160 * len(identities)
    engine.prefill(tokens, identity=Identity(images=(("cat", 21, 30),)), max_tokens=1)  # the same image elsewhere
    assert engine.loaded_tokens() == 0
    world.settle(engine)


def pages_of_late_loads_are_kept(world, begun=lambda: None) -> None:
    """Until kvistd is through with them, also when it was given up, nobody gets the pages of a load."""
    engine = world.start(Shape(blocks=32, step_tokens=192))
    tokens = prompt(1, 160)
    stored(engine, world, tokens)
    with world.late():
        (loads,) = asked(engine, world, tokens + prompt(2, 10))
        begun()
        (blocks,) = engine.scheduler.kv_cache_manager.get_block_ids(loads)
        engine.abort(loads)
        for _ in range(30):
            engine.step()
            free = [b for b in blocks[:10] if engine.pool.blocks[b].ref_cnt == 0]
            assert not free, f"blocks {free} are free while kvistd may write into them"
    world.settle(engine)


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        store_reads_given_pages,
        resumed_not_loaded,
        lease_leaks,
        asked_again_moves_stores,
        freed_twice,
        load_into_freed_pages,
        finished_load_of_gone_request,
        second_update_loads_again,
        drafts_stored,
        salt_ignored,
    )
}
