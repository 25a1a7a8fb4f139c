"""The radix cache over real daemons: what it finds, for whom, and what it does when things go wrong."""

import random
import time

import kv_contents
import kvist
import pytest
import torch
from kvist.sglang import tree_loads
from kvist_daemon import Daemon
from pools import wait_for
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from tree_engine import TreeEngine


def tokens_of(seed, count):
    return random.Random(seed).choices(range(30000), k=count)


def served(engine, tokens, **request):
    """Runs one request; how many of its tokens weren't computed."""
    req = engine.add(tokens, **request)
    engine.run()
    engine.settle()
    return engine.cached[req.rid]


# ---- what it finds ----


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_a_prompt_survives_the_engine(daemon, engines, kind, page):
    tokens = tokens_of(1, 100)
    first = engines(daemon.socket, kind=kind, page=page, chunk=8)
    assert served(first, tokens) == 0
    again = engines(daemon.socket, kind=kind, page=page, chunk=8)
    assert served(again, tokens) == 96
    assert served(again, tokens) == (99 if page == 1 else 96)  # its own tree has it now
    assert again.counts["loads"] == again.counts["lookups"] == 1 and again.counts["stores_failed"] == 0


def test_a_whole_number_of_chunks_leaves_a_token_to_compute(daemon, engines):
    tokens = tokens_of(2, 64)
    served(engines(daemon.socket), tokens)
    again = engines(daemon.socket)
    assert served(again, tokens) == 60  # the last page is computed, for the model needs one token; its chunk comes in part


def test_what_the_model_has_said_is_found_too(daemon, engines):
    first = engines(daemon.socket)
    req = first.add(tokens_of(3, 30), max_new=40)
    first.run()
    first.settle()
    again = engines(daemon.socket)
    assert served(again, [*req.origin_input_ids, *req.output_ids, 1, 2, 3]) == 64  # of 69 tokens with KV, in chunks of 8


def test_only_what_the_tree_lacks_is_loaded(daemon, engines):
    tokens = tokens_of(4, 96)
    served(engines(daemon.socket), tokens)
    again = engines(daemon.socket)
    assert served(again, [*tokens[:44], 1, 2, 3]) == 40
    assert served(again, [*tokens, 5]) == 96
    # The tree had 44 of its own: of the chunk that they end in only the other page was written.
    assert again.counts["loaded_tokens"] == 40 + 52


def test_what_the_tree_has_lost_comes_back(daemon, engines):
    tokens = tokens_of(5, 80)
    engine = engines(daemon.socket)
    served(engine, tokens)
    engine.tree.evict(EvictParams(num_tokens=256))
    assert engine.tree.evictable_size() == 0
    assert served(engine, tokens) == 76


def test_chunked_prefill_stores_as_it_goes(daemon, engines):
    tokens = tokens_of(6, 120)
    engine = engines(daemon.socket, prefill=24)
    engine.add(tokens)
    while engine.chunked is None or engine.chunked.extend_end < 72:
        assert engine.step()
    engine.settle()
    other = engines(daemon.socket)
    assert served(other, tokens) == 48


def test_short_hits_are_computed(daemon, engines):
    tokens = tokens_of(7, 40)
    served(engines(daemon.socket), tokens)
    again = engines(daemon.socket, load_min_tokens=41)
    assert served(again, [*tokens, 1, 2, 3, 4, 5, 6, 7, 8, 9]) == 0
    assert again.counts["loads"] == 0


def test_a_request_waits_and_the_running_ones_go_on(daemon, engines):
    tokens = tokens_of(8, 96)
    served(engines(daemon.socket), tokens)
    engine = engines(daemon.socket)
    running = engine.add(tokens_of(9, 10), max_new=60)
    engine.step()
    begun = engine.tree.side._loads.begin

    def pause_and_begin(*args):
        daemon.pause()
        return begun(*args)

    engine.tree.side._loads.begin = pause_and_begin
    waiting = engine.add(tokens)
    said = len(running.output_ids)
    for _ in range(5):
        assert engine.step()
    assert len(running.output_ids) == said + 5 and waiting in engine.waiting and engine.waited == 5
    daemon.resume()
    engine.run()
    assert engine.cached[waiting.rid] == 92


def test_a_load_that_ends_just_after_the_trees_match_is_not_computed(daemon, engines):
    tokens = tokens_of(19, 96)
    served(engines(daemon.socket), tokens)
    engine = engines(daemon.socket)
    match, begin, paused = engine.tree._match_tree, engine.tree.side._loads.begin, []

    def pause_and_begin(*args):
        daemon.pause()
        paused.append(True)
        return begin(*args)

    def match_and_resume(params):
        result = match(params)
        if paused and paused.pop():
            daemon.resume()
            daemon.wait_status(lambda status: status["chunks_loaded"] == 12 and status["ops"] == 0)
        return result

    engine.tree.side._loads.begin = pause_and_begin
    engine.tree._match_tree = match_and_resume
    assert served(engine, tokens) == 92


def test_a_load_that_ends_between_match_and_admission_is_not_computed(daemon, engines):
    tokens = tokens_of(18, 96)
    served(engines(daemon.socket), tokens)
    engine = engines(daemon.socket)
    side, load = engine.tree.side, engine.tree.side.load

    def late(req):
        answer = load(req)
        wait_for(lambda: side.progress() or not side.busy)
        return answer if load(req) is None else pytest.fail("the request is admitted without what was loaded for it")

    side.load = late
    assert served(engine, tokens) == 92 and engine.waited == 1


# ---- for whom ----

NAMESPACES = [
    {},
    {"salt": "a"},
    {"salt": "b"},
    {"lora": "a"},
    {"lora": "b"},
    {"extra_key": "a", "salt": "a"},
    {"salt": "a", "lora": "b"},
]


def test_salts_and_adapters_never_share(daemon, engines):
    """Each finds its own and nothing else, and the KV that it reads is its own."""
    tokens = tokens_of(10, 48)
    for own in NAMESPACES:
        daemon.clear()
        served(engines(daemon.socket), tokens, **own)
        again = engines(daemon.socket, tokens=1024)
        for other in NAMESPACES:
            if other != own:
                assert served(again, tokens, **other) == 0, f"{other} found what {own} has stored"
        assert served(again, tokens, **own) == 44


def test_a_request_of_the_same_name_is_another(daemon, engines):
    engine = engines(daemon.socket)
    for seed in (16, 17):
        req = engine.add(tokens_of(seed, 48), max_new=9)
        req.rid = "again"
        engine.tree.side.drop = lambda rid: None  # the first one's end wasn't told
        engine.run()
        del engine.tree.side.drop
        engine.cached.clear()
    engine.settle()
    other = engines(daemon.socket)
    assert [served(other, tokens_of(seed, 48)) for seed in (16, 17)] == [44, 44]


def test_an_adapter_is_no_salt(daemon, engines):
    tokens = tokens_of(11, 48)
    served(engines(daemon.socket), tokens, salt="x")
    assert served(engines(daemon.socket), tokens, lora="x") == 0
    assert served(engines(daemon.socket), tokens, extra_key="x") == 0


def test_what_no_key_can_hold_goes_without_kvist(daemon, engines):
    engine = engines(daemon.socket)
    tokens = tokens_of(12, 48)
    for which in ("salt", "extra_key"):
        assert served(engine, tokens, **{which: "a\0b"}) == 0
    assert engine.counts == {}


def test_tokens_of_no_vocabulary_go_without_kvist(daemon, engines):
    """As SGLang puts hashes in the place of images."""
    engine = engines(daemon.socket)
    served(engine, [*tokens_of(13, 48), 1 << 40, 5])
    served(engine, [*tokens_of(13, 47), -7, 5])
    assert engine.counts["lookups"] == 0
    assert served(engines(daemon.socket), tokens_of(13, 49)) == 48  # but what comes before them is like any prompt


def test_namespaces_and_weights_part_engines(daemon, engines):
    tokens = tokens_of(14, 48)
    served(engines(daemon.socket), tokens)
    assert served(engines(daemon.socket, namespace="other"), tokens) == 0
    assert served(engines(daemon.socket, weights="newer"), tokens) == 0
    assert served(engines(daemon.socket, kind="mla"), tokens) == 0
    assert served(engines(daemon.socket), tokens) == 44


def test_after_a_flush_nothing_older_is_found(daemon, engines):
    """SGLang flushes its cache when its weights have changed."""
    tokens = tokens_of(15, 64)
    engine = engines(daemon.socket)
    served(engine, tokens)
    engine.flush()
    assert served(engine, tokens) == 0
    engine.tree.evict(EvictParams(num_tokens=256))
    assert served(engine, tokens) == 60  # what was stored since is
    assert served(engines(daemon.socket), [*tokens, 1]) == 64  # and so is the older, by an engine that starts


# ---- when things go wrong ----


@pytest.mark.parametrize("accident", ["kill", "pause"])
def test_a_load_that_fails_is_computed(daemon, engines, accident):
    """Its pages are nobody's until nothing writes into them."""
    tokens = tokens_of(20, 96)
    served(engines(daemon.socket), tokens)
    engine = engines(daemon.socket, load_timeout_s=0.3, lookup_timeout_s=2.0)
    begin = engine.tree.side._loads.begin

    def hurt_and_begin(*args):
        getattr(daemon, accident)()
        return begin(*args)

    engine.tree.side._loads.begin = hurt_and_begin
    req = engine.add(tokens, max_new=4)
    engine.run()
    assert engine.cached[req.rid] == 0 and engine.counts["loads_failed"] == 1
    if accident == "pause":
        held = engine.tree.side.tokens_in_flight
        assert held == 92 and engine.tree.protected_size() >= held
        served_meanwhile = engine.add(tokens_of(21, 60), max_new=4)
        engine.run()
        assert served_meanwhile in engine.finished
        daemon.resume()
    else:
        daemon.start()
    engine.settle()
    assert engine.tree.side.tokens_in_flight == 0


def test_an_aborted_request_leaves_its_load_until_it_is_quiet(daemon, engines):
    tokens = tokens_of(22, 96)
    served(engines(daemon.socket), tokens)
    engine = engines(daemon.socket, lookup_timeout_s=2.0)
    begin = engine.tree.side._loads.begin

    def pause_and_begin(*args):
        daemon.pause()
        return begin(*args)

    engine.tree.side._loads.begin = pause_and_begin
    req = engine.add(tokens)
    assert not engine.step()
    engine.abort(req)
    assert engine.tree.side.tokens_in_flight == 92
    engine.add(tokens_of(23, 120))
    engine.run()  # in what is left of the pool
    daemon.resume()
    engine.settle()
    daemon.wait_idle()


def test_pages_that_a_store_reads_are_not_evicted(daemon, engines):
    tokens = tokens_of(24, 64)
    engine = engines(daemon.socket, store_timeout_s=30.0, lookup_timeout_s=2.0)
    daemon.pause()
    engine.add(tokens)
    engine.run()
    engine.tree.evict(EvictParams(num_tokens=256))
    assert engine.tree.protected_size() >= 64
    daemon.resume()
    engine.settle()
    assert engine.tree.protected_size() == 0
    other = engines(daemon.socket)
    assert served(other, [*tokens, 1]) == 64  # and what was stored is what was computed


def test_a_request_gets_the_pages_of_a_store_that_is_slow(daemon, engines):
    tokens = tokens_of(25, 150)
    engine = engines(daemon.socket, store_timeout_s=30.0, lookup_timeout_s=2.0)
    daemon.pause()
    engine.add(tokens)
    engine.run()
    assert engine.tree.protected_size() >= 144
    req = engine.add(tokens_of(26, 150))
    wait_for(lambda: engine.step() or req in engine.finished)
    engine.run()
    assert engine.counts["stores_failed"] > 0
    daemon.resume()
    engine.settle()
    assert served(engines(daemon.socket), tokens) == 0  # what was read of it later isn't seen


def test_a_running_request_gets_the_pages_of_a_store(daemon, engines):
    engine = engines(daemon.socket, store_timeout_s=30.0, lookup_timeout_s=2.0)
    daemon.pause()
    engine.add(tokens_of(27, 150))
    engine.run(30)
    running = engine.add(tokens_of(36, 40), max_new=120)
    engine.run(30)
    assert running in engine.finished and engine.counts["stores_failed"] > 0 and engine.retracted == 0
    daemon.resume()


def test_a_running_request_gets_the_pages_of_a_load(daemon, engines, monkeypatch):
    monkeypatch.setattr(tree_loads, "_HURRY_S", 20.0)
    stored = tokens_of(37, 96)
    served(engines(daemon.socket), stored)
    engine = engines(daemon.socket)
    running = engine.add(tokens_of(38, 20), max_new=180)
    engine.step()
    begin, hurry, hurried = engine.tree.side._loads.begin, engine.tree.side._loads.hurry, []

    def pause_and_begin(*args):
        daemon.pause()
        return begin(*args)

    def resume_and_hurry():
        daemon.resume()
        hurried.append(engine.tree.side.tokens_in_flight)
        hurry()

    engine.tree.side._loads.begin, engine.tree.side._loads.hurry = pause_and_begin, resume_and_hurry
    waiting = engine.add([*stored, 1, 2, 3, 4, 5])
    engine.run(60)
    assert hurried == [96] and engine.retracted == 0
    assert running in engine.finished and waiting in engine.finished


def test_a_store_that_is_late_is_given_up_and_offered_again(daemon, engines):
    tokens = tokens_of(28, 40)
    engine = engines(daemon.socket, store_timeout_s=0.2, lookup_timeout_s=2.0)
    daemon.pause()
    req = engine.add(tokens, max_new=30)
    engine.step()
    engine.step()
    wait_for(lambda: engine.step() and engine.counts["stores_failed"])
    daemon.resume()
    wait_for(lambda: engine.tree.side._client.connection == kvist.Connection.CONNECTED)
    engine.tree.side._stores._copies._store_timeout_s = 20.0
    engine.run()
    engine.settle()
    other = engines(daemon.socket)
    assert served(other, [*req.origin_input_ids, *req.output_ids]) == 64


def test_without_room_in_the_pool_it_is_computed(daemon, engines):
    tokens = tokens_of(29, 200)
    served(engines(daemon.socket), tokens)
    engine = engines(daemon.socket)
    busy = engine.add(tokens_of(30, 60), max_new=8)
    engine.step()
    alloc = engine.allocator.alloc
    engine.allocator.alloc = lambda need: None  # another took it between the promise and its keeping
    req = engine.add([*tokens[:150]])
    engine.run()
    engine.allocator.alloc = alloc
    assert engine.cached[req.rid] == 0 and engine.counts["loads_without_room"] == 1
    assert busy in engine.finished
    daemon.wait_idle()


def test_kvistd_comes_late_goes_and_comes_back(engines):
    tokens = tokens_of(31, 64)
    with Daemon(started=False) as daemon:
        engine = engines(daemon.socket, connect_timeout_s=0.05)
        assert served(engine, tokens) == 0
        daemon.start()
        wait_for(lambda: engine.tree.side._client.connection == kvist.Connection.CONNECTED)
        engine.flush()
        assert served(engine, tokens) == 0
        engine.tree.evict(EvictParams(num_tokens=256))
        assert served(engine, tokens) == 60
        daemon.kill()
        assert served(engine, [*tokens, 9, 9, 9, 9, 9]) == 64  # of its own tree
        daemon.start()
        wait_for(lambda: engine.tree.side._client.connection == kvist.Connection.CONNECTED)
        more = tokens_of(32, 64)
        assert served(engine, more) == 0
        engine.tree.evict(EvictParams(num_tokens=256))
        assert served(engine, more) == 60


def test_a_lookup_that_hangs_holds_up_for_its_time_only(daemon, engines):
    tokens = tokens_of(33, 64)
    engine = engines(daemon.socket, lookup_timeout_s=0.2)
    daemon.pause()
    begun = time.monotonic()
    engine.add(tokens)
    engine.run()
    assert time.monotonic() - begun < 10  # for liveness
    assert engine.counts["lookups_missed"] == 1
    daemon.resume()


def test_few_requests_wait_for_a_kvistd_that_hangs(daemon, engines):
    """Each would hold up the queue until its lookup's deadline: 32 s in all."""
    engine = engines(daemon.socket, lookup_timeout_s=4.0)
    daemon.pause()
    begun = time.monotonic()
    engine.tree.side._loads.watch.answered(in_time=False)  # a first one was late
    for number in range(8):
        engine.add(tokens_of(100 + number, 64))
    engine.run()
    assert time.monotonic() - begun < 20
    assert engine.counts["lookups_missed"] == 8
    daemon.resume()
    wait_for(lambda: not engine.tree.side._loads.watch.hangs())


def test_leases_end_with_their_requests(daemon, engines):
    tokens = tokens_of(34, 96)
    served(engines(daemon.socket), tokens)
    engine = engines(daemon.socket)
    engine.add(tokens)
    engine.tree.side._loads.begin = lambda *_: pytest.fail("it was aborted before")
    req = engine.waiting[0]
    req.init_next_round_input(engine.tree)
    wait_for(lambda: engine.tree.side.progress() or not engine.tree.side.busy)
    req.init_next_round_input(engine.tree)
    assert req.host_hit_length == 92 and daemon.status()["leases"] == 1
    engine.abort(req)
    daemon.wait_idle()


def test_the_harness_sees_a_wrong_byte(daemon):
    engine = TreeEngine(daemon.socket)
    req = engine.add(tokens_of(35, 20), max_new=6)
    engine.step()
    at = engine.rows.req_to_token[req.kv.req_pool_idx][17]
    kv_contents.buffers(engine.pool)[-1].view(torch.int16)[at, 0, 3] ^= 1
    with pytest.raises(AssertionError, match=r"reads wrong KV of tokens \[17\]"):
        engine.step()
    engine.shut()
