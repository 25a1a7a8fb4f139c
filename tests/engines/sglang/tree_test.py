"""SGLang's whole cache over kvist: radix tree, pools on a "GPU" that is a CPU, host pool, controller, storage.

What isn't SGLang's own: the two copies between GPU and host pool, which are kernels that CPUs don't have; torch does them here.
"""

import json
import time
from array import array
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from pools import LAUNCH, LAYERS, PAGE, wait_for
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    EvictParams,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context, get_parallel

TOKENS = 256


@pytest.fixture
def world(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def to_device(self, _pool, host_indices, device_indices, layer_id, _backend, *, is_draft=False):
    for host, device in ((self.k_data_refs, self.device_k_buffers), (self.v_data_refs, self.device_v_buffers)):
        device[layer_id][device_indices] = host[layer_id][host_indices]


def to_host(self, _pool, host_indices, device_indices, _backend):
    for layer in range(self.layer_num):
        self.k_data_refs[layer][host_indices] = self.device_k_buffers[layer][device_indices]
        self.v_data_refs[layer][host_indices] = self.device_v_buffers[layer][device_indices]


@pytest.fixture
def start(world, daemon, monkeypatch):
    """start(...) -> a freshly started engine's cache."""
    monkeypatch.setattr(MHATokenToKVPoolHost, "load_to_device_per_layer", to_device)
    monkeypatch.setattr(MHATokenToKVPoolHost, "backup_from_device_all_layer", to_host)
    monkeypatch.setattr("sglang.srt.mem_cache.pool_host.common._cuda_host_register", lambda *_: None)  # pinning
    caches, overrides = [], []

    def start_one(**extra):
        settings = {**LAUNCH, "socket": daemon.socket, "weights": "toy", "prefetch_threshold": PAGE, **extra}
        override = get_context().override_server_args(
            enable_hierarchical_cache=True,
            page_size=PAGE,
            hicache_ratio=2.0,
            hicache_mem_layout="page_first",
            hicache_io_backend="kernel",
            hicache_write_policy="write_through",
            hicache_storage_backend="dynamic",
            hicache_storage_backend_extra_config=json.dumps(settings),
            hicache_storage_prefetch_policy="wait_complete",
        )
        args = override.install()
        overrides.append(override)
        pool = MHATokenToKVPool(TOKENS, PAGE, torch.bfloat16, 2, 8, LAYERS, "cpu", False, enable_alt_stream=False)
        allocator = PagedTokenToKVPoolAllocator(TOKENS, PAGE, torch.bfloat16, "cpu", pool, False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(4, TOKENS, "cpu", False),
            token_to_kv_pool_allocator=allocator,
            page_size=PAGE,
            tp_cache_group=world,
            tree_components=(ComponentType.FULL,),
        )
        cache = UnifiedRadixCache(params)
        with get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_dcp_rank=0):
            cache.init_hicache(args, params)
        caches.append(cache)
        return SimpleNamespace(cache=cache, pool=pool, allocator=allocator)

    yield start_one
    for cache in caches:
        cache.shutdown()
    for override in reversed(overrides):
        override.restore()


def tokens_of(seed, pages):
    generator = torch.Generator().manual_seed(seed)
    return array("q", torch.randint(0, 30000, (pages * PAGE,), generator=generator).tolist())


def compute(engine, tokens, **namespace):
    """What a finished request leaves: KV in the GPU's pool, and its tokens in the tree. Returns the KV [K, V][layer]."""
    indices = engine.allocator.alloc(len(tokens))
    kv = [[torch.randn(len(tokens), 2, 8).to(torch.bfloat16) for _ in range(LAYERS)] for _ in range(2)]
    for buffers, values in zip((engine.pool.k_buffer, engine.pool.v_buffer), kv):
        for layer in range(LAYERS):
            buffers[layer][indices] = values[layer]
    engine.cache.insert(InsertParams(key=RadixKey(tokens, **namespace), value=indices))
    return kv


def settle(engine):
    """As the scheduler between its steps, until nothing is on its way to storage."""

    def quiet():
        engine.cache.check_hicache_events()
        controller = engine.cache.cache_controller
        return not (engine.cache.ongoing_backup or controller.write_queue or controller.ack_write_queue)

    for _ in range(3):
        wait_for(quiet)


def request(engine, tokens, **namespace):
    """As the scheduler with a new request: match, prefetch, wait, match again, load back. Returns the GPU's indices of the prefix."""
    cache = engine.cache
    key = RadixKey(tokens, **namespace)
    handle = CacheRequestHandle(f"request {time.monotonic_ns()}", 0)
    result = cache.match_prefix(MatchPrefixParams(key=key))
    have = result.device_prefix_len + result.host_hit_length
    last_hash = cache.get_last_hash_value(result.last_host_node)
    prefix_keys = cache.get_prefix_hash_values(result.last_host_node) if cache.hicache_storage_pass_prefix_keys else None
    cache.prefetch_from_storage(
        handle, result.last_host_node, tokens[have:], last_hash, prefix_keys, tokens[:have], **namespace
    )

    def come():
        cache.check_hicache_events()
        return cache.check_prefetch_progress(handle)

    wait_for(come)
    came = cache.pop_prefetch_loaded_tokens(handle)
    result = cache.match_prefix(MatchPrefixParams(key=key))
    req = SimpleNamespace(
        rid=handle.rid,
        last_node=result.last_device_node,
        swa_host_hit_length=0,
        mamba_host_hit_length=0,
        kv=SimpleNamespace(mamba_pool_idx=None),
    )
    if result.host_hit_length > 0:
        cache.init_load_back(
            InitLoadBackParams(best_match_node=result.best_match_node, host_hit_length=result.host_hit_length, req=req)
        )
        cache.ready_to_load_host_cache()
        settle(engine)
        result = cache.match_prefix(MatchPrefixParams(key=key))
    return came, cache.path_device_indices(result.last_device_node)[: result.device_prefix_len]


def equal(engine, indices, kv, first=0):
    return all(
        torch.equal(buffers[layer][indices], values[layer][first : first + len(indices)])
        for buffers, values in zip((engine.pool.k_buffer, engine.pool.v_buffer), kv)
        for layer in range(LAYERS)
    )


@pytest.mark.parametrize("pass_prefix_keys", [False, True])
def test_a_prompt_survives_the_engine(start, pass_prefix_keys):
    tokens = tokens_of(1, 12)
    first = start(hicache_storage_pass_prefix_keys=pass_prefix_keys)
    kv = compute(first, tokens)
    settle(first)
    assert first.cache.cache_controller.storage_backend.totals["pages_stored"] == 12

    again = start(hicache_storage_pass_prefix_keys=pass_prefix_keys)
    came, indices = request(again, tokens)
    assert came == len(indices) == len(tokens)
    assert equal(again, indices, kv)


def test_the_rest_of_a_prompt_that_the_engine_has_in_part(start):
    tokens = tokens_of(2, 12)
    first = start()
    kv = compute(first, tokens)
    settle(first)

    again = start()
    assert request(again, tokens[: 5 * PAGE])[0] == 5 * PAGE
    came, indices = request(again, tokens)
    assert came == 7 * PAGE and len(indices) == len(tokens)
    assert equal(again, indices, kv)
    other = tokens[: 8 * PAGE] + tokens_of(3, 4)  # branches off
    came, indices = request(again, other)
    assert len(indices) == 8 * PAGE and equal(again, indices, kv)


def test_salts_and_adapters_are_told_apart(start):
    tokens = tokens_of(4, 8)
    first = start()
    kv = compute(first, tokens, cache_salt="one")
    settle(first)
    again = start()
    for other in ({}, {"cache_salt": "two"}, {"extra_key": "one"}):
        came, indices = request(again, tokens, **other)
        assert (came, len(indices)) == (0, 0), other
    came, indices = request(again, tokens, cache_salt="one")
    assert came == len(tokens) and equal(again, indices, kv)


def test_an_engine_whose_kvistd_is_killed_goes_on(start, daemon):
    tokens = tokens_of(5, 8)
    engine = start()
    kv = compute(engine, tokens)
    settle(engine)
    again = start()
    daemon.kill()
    assert request(again, tokens)[0] == 0
    compute(again, tokens_of(6, 4))
    settle(again)
    came, indices = request(engine, tokens)  # has it itself
    assert came == 0 and equal(engine, indices, kv)
    daemon.start()
    assert again.cache.cache_controller.prefetch_thread.is_alive() and again.cache.cache_controller.backup_thread.is_alive()
    storage = again.cache.cache_controller.storage_backend
    wait_for(lambda: storage._main.pages.connected)
    more = tokens_of(7, 6)
    kept = compute(again, more)
    settle(again)
    last = start()
    came, indices = request(last, more)
    assert came == len(more) and equal(last, indices, kept)


def test_what_the_gpu_and_the_host_have_lost(start):
    """Evicted from both, it comes back from kvist."""
    tokens = tokens_of(8, 10)
    engine = start()
    kv = compute(engine, tokens)
    settle(engine)
    engine.cache.evict(EvictParams(num_tokens=TOKENS))
    engine.cache.evict_host(4 * TOKENS)
    settle(engine)
    left = engine.cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens)))
    assert (left.device_prefix_len, left.host_hit_length) == (0, 0)
    came, indices = request(engine, tokens)
    assert came == len(tokens) and equal(engine, indices, kv)


def test_clear_through_the_tree(start):
    tokens = tokens_of(9, 6)
    engine = start()
    compute(engine, tokens)
    settle(engine)
    assert engine.cache.clear_storage_backend()
    engine.cache.evict(EvictParams(num_tokens=TOKENS))
    engine.cache.evict_host(4 * TOKENS)
    assert request(engine, tokens)[0] == 0
