"""Every byte of every layout, by every way in and out."""

import hashlib

import pytest
import torch
from kvist.status import KvistError, Status
from pools import PAGE, fill, mha_pool, mla_pool, pages_of, read
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer


def key(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


POOLS = {
    "mha page_first": lambda: mha_pool("page_first"),
    "mha layer_first": lambda: mha_pool("layer_first"),
    "mha page_first_direct": lambda: mha_pool("page_first_direct"),
    "mha page_head": lambda: mha_pool("page_head"),
    "mha page_first fp8": lambda: mha_pool("page_first", dtype=torch.float8_e4m3fn),
    "mla page_first": lambda: mla_pool("page_first"),
    "mla layer_first": lambda: mla_pool("layer_first"),
    "mla page_first_direct": lambda: mla_pool("page_first_direct"),
}


@pytest.mark.parametrize("kind", POOLS)
def test_pages_come_back_as_they_were(kind, attach):
    pool = POOLS[kind]()
    kept = fill(pool, 0, 1), fill(pool, pool.page_num - 1, 2)  # attaching writes there, and puts back
    storage = attach(pool, mla=kind.startswith("mla"))
    assert torch.equal(read(pool, 0), kept[0]) and torch.equal(read(pool, pool.page_num - 1), kept[1])

    source, target = [3, 0, pool.page_num - 1, 7], [20, 11, 12, 30]
    content = [fill(pool, page, 100 + page) for page in source]
    keys = [key(n) for n in range(4)]
    assert storage.batch_exists(keys) == 0
    assert storage.batch_get_v1(keys, pages_of(*target)) == [False] * 4
    assert storage.batch_set_v1(keys, pages_of(*source)) == [True] * 4
    assert storage.batch_exists(keys) == 4
    others = {page: fill(pool, page, 500 + page) for page in range(pool.page_num) if page not in target}
    assert storage.batch_get_v1(keys, pages_of(*target)) == [True] * 4
    for page, expected in zip(target, content):
        assert torch.equal(read(pool, page), expected)
    for page, expected in others.items():
        assert torch.equal(read(pool, page), expected), f"page {page} was not to be written"


@pytest.mark.parametrize("kind", ["mha page_first", "mha layer_first", "mla page_first"])
def test_tensors_and_pages_are_the_same(kind, attach):
    pool = POOLS[kind]()
    storage = attach(pool, mla=kind.startswith("mla"))
    keys = [key(n) for n in range(3)]
    content = [fill(pool, page, page) for page in range(3)]
    assert storage.batch_set(keys[:2], [pool.get_data_page(page * PAGE) for page in range(2)])
    assert storage.set(keys[2], pool.get_data_page(2 * PAGE))
    assert storage.batch_get_v1(keys, pages_of(10, 11, 12)) == [True] * 3
    assert all(torch.equal(read(pool, 10 + n), content[n]) for n in range(3))

    dummies = [pool.get_dummy_flat_data_page() for _ in keys]
    got = storage.batch_get(keys + [key(99)], dummies + [pool.get_dummy_flat_data_page()])
    assert [page is not None for page in got] == [True, True, True, False]
    assert all(torch.equal(page.view(torch.uint8), content[n]) for n, page in enumerate(got[:3]))
    assert torch.equal(storage.get(keys[1]).view(torch.uint8), content[1])
    assert storage.get(key(99)) is None and not storage.exists(key(99)) and storage.exists(keys[0])


def test_more_pages_than_are_copied_at_once(attach):
    pool = mha_pool(pages=700)
    storage = attach(pool)
    content = [fill(pool, page, page) for page in range(300)]
    keys = [key(n) for n in range(300)]
    assert all(storage.batch_set_v1(keys, pages_of(*range(300))))
    assert storage.batch_exists(keys + [key("more")]) == 300
    got = storage.batch_get_v1(keys + [key("more")] + keys[:1], pages_of(*range(350, 652)))
    assert got == [True] * 300 + [False] * 2
    assert all(torch.equal(read(pool, 350 + n), content[n]) for n in range(300))
    # and by the generic way, through fewer pages than that
    got = storage.batch_get(keys)
    assert all(torch.equal(page.view(torch.uint8), content[n]) for n, page in enumerate(got))


def test_a_prompt_is_found_whatever_pieces_it_was_stored_in(attach):
    """SGLang stores the nodes of its tree one by one, mostly without saying what comes before, and asks from anywhere."""
    pool = mha_pool(pages=64)
    storage = attach(pool)
    keys = [key(n) for n in range(12)]
    content = [fill(pool, page, page) for page in range(12)]
    for first, last in ((8, 12), (0, 5), (5, 8)):  # the end first
        assert all(storage.batch_set_v1(keys[first:last], pages_of(*range(first, last))))
    assert storage.batch_exists(keys) == 12  # across the pieces
    assert storage.batch_exists(keys[3:]) == 9  # from the middle of one
    assert storage.batch_exists(keys[4:7]) == 3
    assert storage.batch_get_v1(keys[3:], pages_of(*range(20, 29))) == [True] * 9
    assert all(torch.equal(read(pool, 20 + n), content[3 + n]) for n in range(9))
    # a hole ends a prefix, and what comes after it is found when asked for
    other = [key(f"x{n}") for n in range(5)]
    assert all(storage.batch_set_v1(other[:2] + other[3:], pages_of(0, 1, 3, 4)))
    assert storage.batch_exists(other) == 2 and storage.batch_exists(other[3:]) == 2
    assert all(storage.batch_set_v1(other, pages_of(*range(5))))  # those that are there are skipped
    assert storage.batch_exists(other) == 5


def test_what_is_stored_first_stays(attach):
    pool = mha_pool()
    storage = attach(pool)
    first = fill(pool, 1, 1)
    assert storage.batch_set_v1([key(1)], pages_of(1)) == [True]
    fill(pool, 1, 2)
    assert storage.batch_set_v1([key(1)], pages_of(1)) == [True]
    assert storage.batch_get_v1([key(1)], pages_of(5)) == [True]
    assert torch.equal(read(pool, 5), first)


def test_wrong_input_is_a_miss_and_never_raises(attach):
    pool = mha_pool()
    storage = attach(pool)
    keys = [key(n) for n in range(2)]
    before = {page: fill(pool, page, page) for page in range(pool.page_num)}
    torn = pages_of(1, 2)
    torn[3] = 40
    wrong = [pages_of(1), pages_of(1, 2, 3), pages_of(1, pool.page_num), pages_of(1, 2) + 1, torn, pages_of(-1, 2), None]
    for indices in wrong:
        assert storage.batch_set_v1(keys, indices) == [False, False]
        assert storage.batch_get_v1(keys, indices) == [False, False]
    assert storage.batch_exists(keys) == 0
    assert (
        storage.batch_exists([]) == 0
        and storage.batch_get_v1([], pages_of()) == []
        and storage.batch_set_v1([], pages_of()) == []
    )
    assert storage.batch_set(keys, [torch.zeros(3)] * 2) is False and storage.batch_set(keys, None) is False
    assert storage.batch_get(keys, [torch.zeros(3)] * 2) == [None, None]
    assert (
        storage.batch_exists(["no hash"]) == 0
        and storage.set("no hash", pool.get_data_page(0))
        and storage.exists("no hash")
    )
    assert storage.batch_exists([7, None]) == 0
    for page, content in before.items():
        assert torch.equal(read(pool, page), content)


def test_a_page_named_twice(attach):
    pool = mha_pool()
    storage = attach(pool)
    content = fill(pool, 1, 1)
    fill(pool, 2, 1)
    assert storage.batch_set_v1([key(1), key(1)], pages_of(1, 2)) == [True, True]
    assert storage.batch_exists([key(1), key(1)]) == 2
    assert storage.batch_get_v1([key(1), key(1)], pages_of(7, 8)) == [True, True]
    assert torch.equal(read(pool, 7), content) and torch.equal(read(pool, 8), content)


def test_what_kvist_raises_is_a_miss(attach, monkeypatch):
    pool = mha_pool()
    storage = attach(pool)
    storage.batch_set_v1([key(1)], pages_of(1))
    client = storage._main.pages._client

    def fails(*_, **__):
        raise KvistError(Status.INTERNAL, "as if there were a bug")

    for call in ("lookup", "load", "store"):
        with monkeypatch.context() as patched:
            patched.setattr(client, call, fails)
            found = storage.batch_exists([key(1)])
            assert found == (0 if call == "lookup" else 1)
            assert storage.batch_get_v1([key(1)], pages_of(2)) == [call == "store"]
            assert storage.batch_set_v1([key(2)], pages_of(1)) == [call != "store"]
            transfers = [PoolTransfer(PoolName.KV, keys=[key(1)], hit_policy=PoolHitPolicy.TRAILING_PAGES)]
            assert storage.batch_exists_v2([key(1)], transfers).kv_hit_pages == found
    assert storage.batch_exists([key(1)]) == 1


def test_side_pools(attach):
    """v2: each pool has its own pages under the same hashes, and its own rule of what a prefix needs of it."""
    main, draft = mha_pool(pages=40), mha_pool(pages=30, heads=1, layers=1)
    storage = attach(main)
    storage.register_mem_host_pool_v2(main, PoolName.KV)  # SGLang names the main pool again
    storage.register_mem_host_pool_v2(draft, PoolName.DRAFT)
    keys = [key(n) for n in range(6)]
    kv = [fill(main, n, n) for n in range(6)]
    side = [fill(draft, n, 50 + n) for n in range(6)]
    done = storage.batch_set_v2(
        [
            PoolTransfer(PoolName.KV, host_indices=pages_of(*range(6)), keys=keys),
            PoolTransfer(PoolName.DRAFT, host_indices=pages_of(0, 1, 3, 4), keys=[keys[n] for n in (0, 1, 3, 4)]),
            PoolTransfer(PoolName.MAMBA, host_indices=pages_of(0), keys=keys[:1]),  # not registered
        ]
    )
    assert done == {PoolName.KV: [True] * 6, PoolName.DRAFT: [True] * 4, PoolName.MAMBA: [False]}

    def exists(policy, trailing=1):
        return storage.batch_exists_v2(keys, [PoolTransfer(PoolName.DRAFT, keys=keys[:trailing], hit_policy=policy)])

    everything = exists(PoolHitPolicy.ALL_PAGES)
    assert (everything.kv_hit_pages, everything.extra_pool_hit_pages) == (2, {PoolName.KV: 6, PoolName.DRAFT: 2})
    assert everything.restorable_prefix_pages == [1, 2]
    last = exists(PoolHitPolicy.TRAILING_PAGES)
    assert last.kv_hit_pages == 5 and last.restorable_prefix_pages == [1, 2, 4, 5]
    last_two = exists(PoolHitPolicy.TRAILING_PAGES, 2)
    assert last_two.kv_hit_pages == 5 and last_two.restorable_prefix_pages == [1, 2, 5]
    assert storage.batch_exists_v2(keys).kv_hit_pages == 6
    assert storage.batch_exists_v2(keys, [PoolTransfer(PoolName.MAMBA)]).kv_hit_pages == 0

    got = storage.batch_get_v2(
        [
            PoolTransfer(PoolName.DRAFT, host_indices=pages_of(20, 21), keys=keys[3:5]),
            PoolTransfer(PoolName.KV, host_indices=pages_of(20, 21), keys=keys[3:5]),
        ]
    )
    assert got == {PoolName.DRAFT: [True, True], PoolName.KV: [True, True]}
    for n in range(2):
        assert torch.equal(read(draft, 20 + n), side[3 + n]) and torch.equal(read(main, 20 + n), kv[3 + n])


def test_statistics_in_sglangs_form(attach):
    pool = mha_pool()
    storage = attach(pool)
    keys = [key(n) for n in range(3)]
    storage.batch_set_v1(keys, pages_of(0, 1, 2))
    storage.batch_get_v1(keys, pages_of(3, 4, 5))
    metrics = storage.get_stats()
    assert metrics.backup_pgs == [3] and metrics.prefetch_pgs == [3]
    assert len(metrics.backup_bandwidth) == 1 and metrics.prefetch_bandwidth[0] > 0
    assert storage.get_stats().backup_pgs == []  # each is told once
    assert storage.totals["pages_loaded"] == 3
