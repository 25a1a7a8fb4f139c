"""SGLang's own host pools on a CPU, and what fills and reads them."""

import time

import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo, MLABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

PAGE = 4  # tokens
LAYERS = 3
LAUNCH = {
    "backend_name": "kvist",
    "module_path": "kvist.sglang",
    "class_name": "KvistStorage",
    "interface_v1": 1,
    "allocator": "shm",
}


def mha_pool(layout="page_first", pages=40, heads=2, width=8, dtype=torch.bfloat16, allocator="shm", layers=LAYERS):
    """SGLang's MHA host pool, of at least `pages` pages, without pinning."""
    device = [torch.zeros(PAGE, heads, width, dtype=dtype) for _ in range(2 * layers)]
    pointers = torch.tensor([t.data_ptr() for t in device], dtype=torch.uint64)
    info = MHABufferInfo(
        buffers=KVBuffers(
            k=tuple(device[:layers]),
            v=tuple(device[layers:]),
            k_data_ptrs=pointers[:layers],
            v_data_ptrs=pointers[layers:],
            layout=KVBufferLayout.NHD,
        ),
        page_size=PAGE,
        head_num=heads,
        head_dim=width,
        v_head_dim=width,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    return MHATokenToKVPoolHost(
        info,
        1.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        allocator_type=allocator,
        device_capacity_tokens=PAGE,
        start_layer=0,
        end_layer=layers,
        host_token_capacity=pages * PAGE,
    )


def mla_pool(layout="page_first", pages=40, dtype=torch.bfloat16, allocator="shm", layers=LAYERS):
    device = [torch.zeros(PAGE, 1, 24, dtype=dtype) for _ in range(layers)]
    info = MLABufferInfo(
        buffers=tuple(device),
        data_ptrs=torch.tensor([t.data_ptr() for t in device], dtype=torch.uint64),
        layer_indices=tuple(range(layers)),
        device_layer_num=layers,
        page_size=PAGE,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        kv_cache_dim=24,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    return MLATokenToKVPoolHost(
        info,
        1.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        allocator_type=allocator,
        device_capacity_tokens=PAGE,
        start_layer=0,
        end_layer=layers,
        target_layer_num=layers,
        host_token_capacity=pages * PAGE,
    )


def config(daemon, *, tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, mla=False, model="toy", **extra):
    return HiCacheStorageConfig(
        tp_rank=tp_rank,
        tp_size=tp_size,
        pp_rank=pp_rank,
        pp_size=pp_size,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=mla,
        enable_storage_metrics=True,
        is_page_first_layout=True,
        model_name=model,
        extra_config={**LAUNCH, "socket": daemon.socket, "weights": "toy", **extra},
    )


def pages_of(*numbers):
    """SGLang's host indices of whole pages."""
    return (
        torch.cat([torch.arange(n * PAGE, (n + 1) * PAGE) for n in numbers])
        if numbers
        else torch.empty(0, dtype=torch.int64)
    )


def fill(pool, page, seed):
    """Random bytes into a page through the pool's own indexing; returns them."""
    size = pool.get_size_per_token() * PAGE
    content = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    pool.set_from_flat_data_page(page * PAGE, content.view(pool.dtype))
    return content


def read(pool, page):
    return pool.get_data_page(page * PAGE, flat=True).contiguous().view(torch.uint8).clone()


def wait_for(condition, seconds=20.0):
    """Until `condition()`; a bound for liveness only."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it didn't happen in time"
        time.sleep(0.02)
