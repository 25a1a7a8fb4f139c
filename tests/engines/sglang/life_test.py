"""What happens over time: histories against a model, a full pool, a daemon that goes, stops and comes back."""

import hashlib
import random
import threading
import time

import torch
from kvist.sglang import KvistStorage
from kvist_daemon import Daemon
from pools import config, fill, mha_pool, mla_pool, pages_of, read, wait_for


def key(name):
    return hashlib.sha256(str(name).encode()).hexdigest()


def content_of(pool, name):
    """What a page of that name holds, always and in every process."""
    size = pool.get_size_per_token() * pool.page_size
    seed = int.from_bytes(hashlib.sha256(f"content {name}".encode()).digest()[:4], "little")
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def put(pool, page, content):
    pool.set_from_flat_data_page(page * pool.page_size, content.view(pool.dtype))


class Model:
    """Prompts over a small alphabet of pages, and what has been stored of them by one engine."""

    def __init__(self, storage, pool, seed):
        self.storage, self.pool = storage, pool
        self.random = random.Random(seed)
        self.stored = set()

    def prompt(self):
        """[pages] names; each stands for the whole prompt up to it."""
        names, name = [], ""
        for _ in range(self.random.randint(1, 10)):
            name += self.random.choice("ab")
            names.append(name)
        return names

    def step(self, exact):
        """One call; `exact`: what was stored must be there, too."""
        names = self.prompt()
        first = self.random.randrange(len(names))
        names = names[first:]
        keys = [key(n) for n in names]
        pages = self.random.sample(range(self.pool.page_num), len(names))
        expected = 0
        while expected < len(names) and names[expected] in self.stored:
            expected += 1
        what = self.random.randrange(3)
        if what == 0:
            found = self.storage.batch_exists(keys)
            assert found <= expected and (found == expected or not exact)
        elif what == 1:
            for page, name in zip(pages, names):
                put(self.pool, page, content_of(self.pool, name))
            done = self.storage.batch_set_v1(keys, pages_of(*pages))
            assert all(done) or not exact
            self.stored.update(names)  # or perhaps: without `exact` it's an upper bound
        else:
            for page in pages:
                put(self.pool, page, content_of(self.pool, "junk"))
            got = self.storage.batch_get_v1(keys, pages_of(*pages))
            count = sum(got)
            assert got == [True] * count + [False] * (len(got) - count)
            assert count <= expected and (count == expected or not exact)
            for page, name in zip(pages[:count], names):
                assert torch.equal(read(self.pool, page), content_of(self.pool, name)), f"wrong bytes for {name}"


def test_random_histories(attach):
    for layout, seed in (("page_first", 1), ("layer_first", 2), ("page_first_direct", 3)):
        pool = mha_pool(layout)
        model = Model(attach(pool, namespace=layout), pool, seed)
        for _ in range(400):
            model.step(exact=True)
        assert len(model.stored) > 50


def test_random_histories_of_several_threads(attach):
    """As SGLang does: lookups, loads and stores from threads of their own, in one session."""
    pool = mha_pool(pages=90)
    storage = attach(pool)
    failures = []

    def work(seed):
        try:
            rng = random.Random(seed)
            own = list(range(seed * 30, seed * 30 + 30))
            for _ in range(200):
                name, names = "", []
                for _ in range(rng.randint(1, 8)):
                    name += rng.choice("ab")
                    names.append(name)
                keys, pages = [key(n) for n in names], rng.sample(own, len(names))
                what = rng.randrange(3)
                if what == 0:
                    assert storage.batch_exists(keys) <= len(keys)
                elif what == 1:
                    for page, n in zip(pages, names):
                        put(pool, page, content_of(pool, n))
                    storage.batch_set_v1(keys, pages_of(*pages))
                else:
                    got = storage.batch_get_v1(keys, pages_of(*pages))
                    for page, n in zip(pages[: sum(got)], names):
                        assert torch.equal(read(pool, page), content_of(pool, n))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not failures, failures
    assert storage.batch_exists([key("a")]) == 1


def test_random_histories_in_a_full_pool(small_daemon, attach):
    """Pages go, and never come back as others."""
    pool = mha_pool(pages=40, heads=4, width=64, layers=4)  # 16 KiB a page; 4 MiB hold some 200
    model = Model(attach(pool, at=small_daemon), pool, 4)
    for _ in range(1500):
        model.step(exact=False)
    assert len(model.stored) > 400


def crowd(storage, pages):
    """Other pages, so many that earlier ones have to go."""
    for first in range(0, pages, 20):
        keys = [key(f"new {n}") for n in range(first, first + 20)]
        assert all(storage.batch_set_v1(keys, pages_of(*range(100, 120))))


def test_the_end_of_a_prompt_goes_before_its_beginning(small_daemon, attach):
    pool = mha_pool(pages=140, heads=4, width=64, layers=4)
    storage = attach(pool, at=small_daemon)
    old = [key(f"old {n}") for n in range(100)]
    content = [fill(pool, n, n) for n in range(100)]
    assert all(storage.batch_set_v1(old, pages_of(*range(100))))
    assert storage.batch_exists(old) == 100
    crowd(storage, 140)  # some 200 have room
    left = sum(storage._main.pages.present_each([bytes.fromhex(k) for k in old]))
    assert 0 < left < 100, "the pool was to run full"
    assert storage.batch_exists(old) == left, "what is left is the beginning"
    got = storage.batch_get_v1(old[:40], pages_of(*range(100, 140)))
    assert got == [True] * 40 and all(torch.equal(read(pool, 100 + n), content[n]) for n in range(40))


def test_prefix_keys_keep_the_beginning_of_a_long_prompt(small_daemon, attach):
    """A prompt stored in batches: with its prefix keys its first batch isn't the first to go."""

    class Extra:
        def __init__(self, prefix_keys):
            self.prefix_keys = prefix_keys

    pool = mha_pool(pages=140, heads=4, width=64, layers=4)
    storage = attach(pool, at=small_daemon)
    keys = [key(f"long {n}") for n in range(120)]
    for first in range(0, 120, 40):
        batch = keys[first : first + 40]
        assert all(storage.batch_set_v1(batch, pages_of(*range(40)), Extra(keys[:first])))
    crowd(storage, 120)
    there = storage._main.pages.present_each([bytes.fromhex(k) for k in keys])
    assert 0 < sum(there) < 120
    assert there == [True] * sum(there) + [False] * (120 - sum(there))


def test_ranks_models_and_namespaces_share_nothing(attach, daemon):
    pool = mha_pool()
    content = fill(pool, 1, 1)
    base = attach(pool, tp_size=2)
    assert base.batch_set_v1([key(1)], pages_of(1)) == [True]
    others = [
        {"tp_size": 2, "tp_rank": 1},
        {"tp_size": 4},
        {"tp_size": 2, "pp_size": 2},
        {"tp_size": 2, "pp_size": 2, "pp_rank": 1},
        {"tp_size": 2, "namespace": "tenant b"},
        {"tp_size": 2, "model": "another"},
        {"tp_size": 2, "weights": "later"},
    ]
    for other in others:
        assert attach(pool, **other).batch_exists([key(1)]) == 0, other
    for different in (mha_pool("layer_first"), mha_pool(dtype=torch.float16), mha_pool(heads=1, width=16)):
        assert attach(different, tp_size=2).batch_exists([key(1)]) == 0
    same = attach(mha_pool(pages=60), tp_size=2)  # a pool of another size, in another process as well
    assert same.batch_exists([key(1)]) == 1
    assert same.batch_get_v1([key(1)], pages_of(50)) == [True]
    assert torch.equal(read(same.mem_pool_host, 50), content)


def test_mla_ranks_share(attach):
    one, other = mla_pool(), mla_pool()
    content = fill(one, 2, 2)
    assert attach(one, mla=True, tp_size=2).batch_set_v1([key(1)], pages_of(2)) == [True]
    reader = attach(other, mla=True, tp_size=2, tp_rank=1)
    assert reader.batch_get_v1([key(1)], pages_of(3)) == [True] and torch.equal(read(other, 3), content)


def test_clear(attach):
    mla = attach(mla_pool(), mla=True, tp_size=2), attach(mla_pool(), mla=True, tp_size=2, tp_rank=1)
    pool = mla[0].mem_pool_host
    fill(pool, 1, 1)
    assert mla[0].batch_set_v1([key(1)], pages_of(1)) == [True] and mla[1].batch_exists([key(1)]) == 1
    assert all(storage.clear() for storage in mla)
    assert [storage.batch_exists([key(1)]) for storage in mla] == [0, 0]
    later = fill(pool, 1, 9)
    assert mla[0].batch_set_v1([key(1)], pages_of(1)) == [True]
    assert mla[1].batch_get_v1([key(1)], pages_of(5)) == [True]
    assert torch.equal(read(mla[1].mem_pool_host, 5), later)
    again = attach(mla_pool(), mla=True, tp_size=2)  # attached anew in the same process: what was cleared stays so
    assert again.batch_get_v1([key(1)], pages_of(5)) == [True] and torch.equal(read(again.mem_pool_host, 5), later)


def test_kvistd_goes_and_comes_back(attach, daemon, caplog):
    pool = mha_pool()
    storage = attach(pool)
    content = fill(pool, 1, 1)
    assert storage.batch_set_v1([key(1)], pages_of(1)) == [True]
    daemon.kill()
    for _ in range(5):
        assert storage.batch_exists([key(1)]) == 0
        assert storage.batch_get_v1([key(1)], pages_of(2)) == [False]
        assert storage.batch_set_v1([key(1)], pages_of(1)) == [False]
        assert storage.get(key(1)) is None and storage.set(key(1), pool.get_data_page(0)) is False
    said = [record for record in caplog.records if "kvistd is not there" in record.message]
    assert len(said) <= 2  # one session for pages, one for tensors
    assert len(said) >= 1
    assert storage.totals["calls_without_kvistd"] > 0
    daemon.start()
    wait_for(lambda: storage.batch_set_v1([key(1)], pages_of(1)) == [True])
    assert storage.batch_get_v1([key(1)], pages_of(2)) == [True] and torch.equal(read(pool, 2), content)
    wait_for(lambda: storage.set(key(2), pool.get_data_page(0)) is True)


def test_histories_while_kvistd_is_killed_again_and_again(attach, daemon):
    pool = mha_pool()
    model = Model(attach(pool), pool, 5)
    stop = threading.Event()

    def killer():
        while not stop.wait(0.15):
            daemon.kill()
            daemon.start()

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        for _ in range(600):
            model.step(exact=False)
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_an_engine_starts_without_kvistd(tmp_path, daemon):
    daemon.kill()
    pool = mha_pool()
    content = fill(pool, 0, 7)
    storage = KvistStorage(config(daemon, connect_timeout_s=0.05), {})
    try:
        storage.register_mem_pool_host(pool)
        assert torch.equal(read(pool, 0), content)
        assert storage.batch_exists([key(1)]) == 0
        daemon.start()
        wait_for(lambda: storage.batch_set_v1([key(1)], pages_of(0)) == [True])
        assert storage.batch_get_v1([key(1)], pages_of(9)) == [True] and torch.equal(read(pool, 9), content)
    finally:
        storage.close()


def test_a_stopped_kvistd_holds_nothing_up_for_longer_than_the_deadline(attach, daemon):
    pool = mha_pool()
    storage = attach(pool, deadline_s=0.3)
    fill(pool, 1, 1)
    assert storage.batch_set_v1([key(1)], pages_of(1)) == [True]
    daemon.pause()
    try:
        start = time.monotonic()
        assert storage.batch_exists([key(1)]) == 0
        assert storage.batch_set_v1([key(2)], pages_of(1)) == [False]
        assert storage.batch_get_v1([key(1)], pages_of(1)) == [False]
        assert time.monotonic() - start < 10
    finally:
        daemon.resume()
    wait_for(lambda: storage.batch_exists([key(1)]) == 1)


def test_close_ends_it(attach):
    pool = mha_pool()
    storage = attach(pool)
    storage.batch_set_v1([key(1)], pages_of(1))
    storage.close()
    assert storage.batch_exists([key(1)]) == 0
    assert storage.batch_get_v1([key(1)], pages_of(1)) == [False] and storage.batch_set_v1([key(1)], pages_of(1)) == [False]
    storage.close()


def test_two_daemons_share_nothing(attach, daemon):
    with Daemon() as other:
        pool = mha_pool()
        assert attach(pool).batch_set_v1([key(1)], pages_of(1)) == [True]
        assert attach(pool, at=other).batch_exists([key(1)]) == 0


def test_pages_come_back_only_when_nothing_writes_into_them(attach, daemon):
    """kvistd stops in the middle of loads that are late at once: what SGLang is given back stays as SGLang leaves it."""
    pool = mha_pool(pages=260, heads=8, width=128, layers=8)  # 128 KiB a page
    storage = attach(pool, deadline_s=0.02)
    patient = attach(pool)
    keys = [key(n) for n in range(100)]
    assert all(patient.batch_set_v1(keys, pages_of(*range(100))))
    pool.kv_buffer.zero_()
    stop = threading.Event()

    def stutter():
        rng = random.Random(6)
        while not stop.is_set():
            daemon.pause()
            stop.wait(0.05)
            daemon.resume()
            stop.wait(rng.uniform(0.0, 0.02))

    thread = threading.Thread(target=stutter)
    thread.start()
    late = 0
    try:
        for turn in range(60):
            got = storage.batch_get_v1(keys, pages_of(*range(130, 230)))
            late += not all(got)
            pool.kv_buffer.view(torch.uint8).fill_(turn + 1)  # SGLang uses its pages for something else
            assert patient.batch_exists(keys) >= 0  # kvistd has come round in between
            assert bool((pool.kv_buffer.view(torch.uint8) == turn + 1).all()), "written after it was given back"
            storage._main.pages._paused_until = 0.0
    finally:
        stop.set()
        thread.join(30)
    assert late > 0


def test_close_is_bounded_though_a_call_never_returns(attach):
    """As when kvistd stands still in the middle of a load."""
    storage = attach(mha_pool(), deadline_s=0.1)
    pages = storage._main.pages
    entered, leave = threading.Event(), threading.Event()

    def call():
        with pages._using():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=call)
    thread.start()
    assert entered.wait(30)
    start = time.monotonic()
    storage.close()
    assert time.monotonic() - start < 30
    assert storage.batch_exists([key(1)]) == 0
    leave.set()
    thread.join(30)  # its session was left open, so it returns as it went
    assert not thread.is_alive()
