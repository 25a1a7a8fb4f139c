"""The radix cache on two tensor-parallel ranks, each a process with its own tree and pages, in step as SGLang's schedulers are."""

import multiprocessing
import random

import kv_contents
import torch
import torch.distributed as dist
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from tree_engine import TreeEngine


def settle(engine):
    """The same number of looks on all ranks, until all have nothing under way."""
    while True:
        engine.tree.flush_pending_backups()
        busy = [None] * dist.get_world_size()
        dist.all_gather_object(busy, engine.tree.side.busy)
        if not any(busy):
            return


def finish(engine):
    """Runs all; ends when all ranks have nothing to do."""
    while engine.step() or engine.waiting or engine.chunked is not None:
        pass
    settle(engine)
    engine.check_tree()


def played(engine, seed):
    """A random stream of requests: what this rank did for each."""
    dice = random.Random(seed)
    prompts = [[dice.randrange(30000) for _ in range(90)] for _ in range(3)]
    for _ in range(60):
        action = dice.random()
        if action < 0.3 and len(engine.waiting) < 4:
            tokens = dice.choice(prompts)[: dice.randrange(10, 90)] + [
                dice.randrange(30000) for _ in range(dice.choice([0, 5, 20]))
            ]
            engine.add(tokens, max_new=dice.choice([1, 4, 30]), **dice.choice([{}, {"salt": "a"}, {"lora": "b"}]))
        elif action < 0.4:
            engine.tree.evict(EvictParams(num_tokens=dice.randrange(1, 200)))
        elif action < 0.45 and engine.waiting:
            engine.abort(dice.choice(engine.waiting))
        else:
            engine.step()
    finish(engine)


def seen(engine):
    """What must be the same on all ranks."""
    return (sorted(engine.cached.items()), engine.tree.evictable_size(), engine.allocator.available_size(), engine.retracted)


def rank_process(rank, meet, socket, kind, scenarios, answers):
    scenario = None
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
        kv_contents.rank = 0 if kind == "mla" else rank
        found = []
        for scenario in scenarios:
            engine = TreeEngine(socket, kind=kind, group=dist.group.WORLD, tokens=192, rows=8)
            found.append((scenario(engine, rank), seen(engine)))
            engine.shut()
        answers.put((rank, found))
    except BaseException as error:  # noqa: BLE001
        answers.put((rank, f"{scenario}: {error!r}"))
        raise


def run_ranks(daemon, tmp_path, kind, scenarios):
    """[scenario] what both ranks returned: the same."""
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    arguments = (tmp_path / "meet", daemon.socket, kind, scenarios, answers)
    processes = [spawn.Process(target=rank_process, args=(rank, *arguments), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        found = dict(answers.get(timeout=240) for _ in processes)
    finally:
        for process in processes:
            process.join(30)
            process.kill()
    for rank in range(2):
        assert isinstance(found[rank], list), f"rank {rank}: {found[rank]}"
    assert found[0] == found[1]
    return [answer for answer, _ in found[0]]


def survives(engine, rank):
    tokens = random.Random(1).choices(range(30000), k=80)
    engine.add(tokens)
    finish(engine)
    engine.tree.evict(EvictParams(num_tokens=192))
    req = engine.add(tokens)
    finish(engine)
    return engine.cached[req.rid], engine.counts["loads"]


def one_rank_fails(engine, rank):
    """The second rank's load doesn't begin: then nobody has it."""
    tokens = random.Random(2).choices(range(30000), k=80)
    engine.add(tokens)
    finish(engine)
    engine.tree.evict(EvictParams(num_tokens=192))
    copies = engine.tree.side._loads._copies
    load = copies.load
    if rank == 1:
        copies.load = lambda _lease, *args, **kwargs: load(1 << 40, *args, **kwargs)  # no such lease
    req = engine.add(tokens)
    finish(engine)
    return engine.cached[req.rid], engine.counts["loads"], engine.counts["loads_failed"], engine.tree.side.tokens_in_flight


def history_0(engine, rank):
    played(engine, 0)
    return engine.counts["loads"]


def history_1(engine, rank):
    played(engine, 1)
    return engine.counts["loads"]


def test_ranks_keep_their_own_shares_and_stay_in_step(daemon, tmp_path):
    """Also where a load fails on one of them: then all compute."""
    found = run_ranks(daemon, tmp_path, "mha", [survives, one_rank_fails, history_0, history_1])
    assert found[:2] == [(76, 1), (0, 0, 1, 0)]
    assert found[2] + found[3] > 0
    daemon.wait_idle(sessions=0)


def test_ranks_of_mla_share_one_copy(daemon, tmp_path):
    assert run_ranks(daemon, tmp_path, "mla", [survives]) == [(76, 1)]
    daemon.wait_idle(sessions=0)
