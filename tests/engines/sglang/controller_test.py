"""SGLang's own storage threads (HiCacheController and the HybridCacheController that it runs today) over kvist."""

import threading
import time
import types
from array import array

import pytest
import torch
import torch.distributed as dist
from pools import LAUNCH, LAYERS, PAGE, fill, mha_pool, pages_of, read, wait_for
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_context, get_parallel

PAGES = 700  # of the host pool


class DevicePool:
    """What the controllers ask of a GPU's pool when nothing is copied to or from it."""

    device = torch.device("cpu")
    layer_num = LAYERS

    def register_layer_transfer_counter(self, _counter):
        pass


class Allocator:
    def get_kvcache(self):
        return DevicePool()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path_factory.mktemp('gloo')}/meet", rank=0, world_size=1)
    override = get_context().override_server_args()
    override.install()
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(params=["HiCacheController", "HybridCacheController"])
def controller(request, world, daemon):
    pool = mha_pool(pages=PAGES)
    hybrid = request.param == "HybridCacheController"
    host = HostPoolGroup([PoolEntry(PoolName.KV, pool, DevicePool(), lambda layer: layer, True)]) if hybrid else pool
    with get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_dcp_rank=0):
        made = (HybridCacheController if hybrid else HiCacheController)(
            Allocator(),
            host,
            PAGE,
            world,
            threading.Event(),
            io_backend="direct",
            storage_backend="dynamic",
            prefetch_threshold=PAGE,
            model_name="toy",
            storage_backend_extra_config={**LAUNCH, "socket": daemon.socket, "weights": "toy", "deadline_s": 2.0},
            enable_storage_metrics=True,
        )
    made.toy_pool, made.hybrid = pool, hybrid
    yield made
    made.detach_storage_backend()


def prompt(length, seed, **namespace):
    generator = torch.Generator().manual_seed(seed)
    return RadixKey(array("q", torch.randint(0, 30000, (length,), generator=generator).tolist()), **namespace)


def hashes(tokens, after=None):
    return get_storage_hash_str(tokens, after, page_size=PAGE)


def back_up(controller, tokens, first_page):
    """As the scheduler does after a request: returns the tokens that are kept, when SGLang says so."""
    names = hashes(tokens)
    controller.write_storage(pages_of(*range(first_page, first_page + len(names))), tokens, names, prefix_keys=[])
    return controller.ack_backup_queue.get(timeout=60).completed_tokens


def prefetch(controller, tokens, first_page, last_hash=None, prefix_keys=None):
    """As the scheduler does for a waiting request: returns the tokens that came."""
    request = f"request {time.monotonic_ns()}"
    handle = types.SimpleNamespace(rid=request) if controller.hybrid else request
    controller.prefetch(handle, tokens, last_hash, prefix_keys)
    operation = controller.prefetch_hit_queue.get(timeout=60)
    count = operation.storage_hit_count // PAGE
    assert len(operation.hash_value) == count
    operation.host_indices = pages_of(*range(first_page, first_page + count))
    controller.prefetch_buffer.put(operation)
    completed = 0
    while True:
        ack = controller.ack_prefetch_queue.get(timeout=60)
        if ack.completed_tokens is not None:
            completed = max(completed, ack.completed_tokens)
        if ack.completed_req:
            return operation.storage_hit_count, completed


def threads_of(controller):
    return [
        controller.prefetch_thread,
        controller.backup_thread,
        controller.prefetch_io_aux_thread,
        controller.prefetch_sync_thread,
    ]


def test_a_prompt_goes_out_and_comes_back(controller):
    pool, pages = controller.toy_pool, 300  # three batches
    tokens = prompt(pages * PAGE, 1)
    content = [fill(pool, page, page) for page in range(pages)]
    assert prefetch(controller, tokens, 350) == (0, 0)
    assert back_up(controller, tokens, 0) == pages * PAGE
    for page in range(350, 350 + pages):
        fill(pool, page, 10_000 + page)
    assert prefetch(controller, tokens, 350) == (pages * PAGE, pages * PAGE)
    assert all(torch.equal(read(pool, 350 + n), content[n]) for n in range(pages))

    # What the GPU has of it isn't fetched: SGLang asks from the middle, with or without what comes before.
    middle = 130
    rest = RadixKey(tokens.token_ids[middle * PAGE :])
    names = hashes(tokens)
    for prefix_keys in (None, names[:middle]):
        for page in range(350, 350 + pages - middle):
            fill(pool, page, 20_000 + page)
        wanted = (pages - middle) * PAGE
        assert prefetch(controller, rest, 350, names[middle - 1], prefix_keys) == (wanted, wanted)
        assert all(torch.equal(read(pool, 350 + n), content[middle + n]) for n in range(pages - middle))
    assert prefetch(controller, prompt(8 * PAGE, 2), 350) == (0, 0)


def test_requests_of_other_salts_and_adapters_find_nothing(controller):
    pool = controller.toy_pool
    fill(pool, 0, 1)
    assert back_up(controller, prompt(4 * PAGE, 3, cache_salt="one"), 0) == 4 * PAGE
    for other in ({}, {"cache_salt": "two"}, {"extra_key": "one"}, {"cache_salt": "one", "extra_key": "adapter"}):
        assert prefetch(controller, prompt(4 * PAGE, 3, **other), 100) == (0, 0), other
    assert prefetch(controller, prompt(4 * PAGE, 3, cache_salt="one"), 100) == (4 * PAGE, 4 * PAGE)


def test_sglangs_threads_outlive_kvistd(controller, daemon):
    pool = controller.toy_pool
    tokens = prompt(20 * PAGE, 4)
    content = [fill(pool, page, page) for page in range(20)]
    assert back_up(controller, tokens, 0) == 20 * PAGE
    daemon.kill()
    for _ in range(3):
        assert prefetch(controller, tokens, 100) == (0, 0)
        assert back_up(controller, tokens, 0) == 0
    assert all(thread.is_alive() for thread in threads_of(controller))
    daemon.start()
    wait_for(lambda: back_up(controller, tokens, 0) == 20 * PAGE)
    assert prefetch(controller, tokens, 100) == (20 * PAGE, 20 * PAGE)
    assert all(torch.equal(read(pool, 100 + n), content[n]) for n in range(20))
    assert all(thread.is_alive() for thread in threads_of(controller))


def test_reset_detach_and_attach_again(controller, daemon):
    pool = controller.toy_pool
    tokens = prompt(10 * PAGE, 5)
    content = [fill(pool, page, page) for page in range(10)]
    assert back_up(controller, tokens, 0) == 10 * PAGE
    controller.reset()
    assert prefetch(controller, tokens, 100)[1] == 10 * PAGE
    controller.detach_storage_backend()
    untouched = fill(pool, PAGES - 1, 77)
    with get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_dcp_rank=0):
        controller.attach_storage_backend("dynamic", PAGE, "toy", {**LAUNCH, "socket": daemon.socket, "weights": "toy"})
    assert torch.equal(read(pool, PAGES - 1), untouched) and torch.equal(read(pool, 0), content[0])
    assert prefetch(controller, tokens, 200)[1] == 10 * PAGE
    assert all(torch.equal(read(pool, 200 + n), content[n]) for n in range(10))


def test_without_interface_v1_tensors_are_copied(world, daemon):
    pool = mha_pool("layer_first")
    extra = {name: value for name, value in LAUNCH.items() if name != "interface_v1"}
    with get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_dcp_rank=0):
        controller = HiCacheController(
            Allocator(),
            pool,
            PAGE,
            world,
            threading.Event(),
            io_backend="direct",
            storage_backend="dynamic",
            prefetch_threshold=PAGE,
            model_name="toy",
            storage_backend_extra_config={**extra, "socket": daemon.socket, "weights": "toy"},
        )
    controller.hybrid = False
    try:
        tokens = prompt(6 * PAGE, 6)
        content = [fill(pool, page, page) for page in range(6)]
        assert back_up(controller, tokens, 0) == 6 * PAGE
        assert prefetch(controller, tokens, 20)[1] == 6 * PAGE
        assert all(torch.equal(read(pool, 20 + n), content[n]) for n in range(6))
    finally:
        controller.detach_storage_backend()
