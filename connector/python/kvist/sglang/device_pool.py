"""Where the pages of the engine's own KV pool lie: SGLang's MHATokenToKVPool and MLATokenToKVPool."""

from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

from kvist.tensors import EngineGroup, RankMemory, describe_rank

SUPPORTED = "MHATokenToKVPool and MLATokenToKVPool of layout nhd, without scales"


def describe(pool: Any, page_tokens: int, tensor_parallel: int) -> RankMemory:
    """Each layer's K and V are layers to kvist, as they lie in tensors of their own. They stay shared until the process ends, as the pool does. Raises
    ValueError, saying what was seen."""
    seen = f"the KV pool {type(pool).__name__} of layout {getattr(pool, 'kv_cache_layout', 'nhd')}"
    tensors = _tensors(pool)
    if tensors is None:
        raise ValueError(f"kvist's radix cache doesn't keep {seen}; it supports {SUPPORTED}")
    devices = sorted({tensor.device.type for tensor in tensors.values()})
    if devices != ["cpu"]:
        raise ValueError(
            f"kvist's radix cache keeps the KV of CPU engines so far; this one's is on {', '.join(devices)}. For GPUs it comes with kvist's "
            "CUDA engine; until then use the HiCache storage backend (examples/sglang/README.md)"
        )
    # Page 0 is where SGLang writes what nobody reads; a pool's last tokens may be no whole page.
    pages = min(tensor.shape[0] for tensor in tensors.values()) // page_tokens
    whole = {name: tensor[: pages * page_tokens] for name, tensor in tensors.items()}
    replicated = type(pool) is MLATokenToKVPool and tensor_parallel > 1
    return describe_rank([EngineGroup(0, tuple(whole), page_tokens, 0, replicated)], whole, pages)


def _tensors(pool: Any) -> dict[str, torch.Tensor] | None:
    """[layer by layer] None: not a pool whose bytes are known. Exact types: what derives from them keeps other things."""
    if type(pool) is MLATokenToKVPool and not pool.use_dsa and pool.kv_scale_buffer is None and not pool.layer_shard_enabled:
        return {f"kv{layer}": tensor for layer, tensor in enumerate(pool.kv_buffer)}
    if type(pool) is not MHATokenToKVPool or pool.kv_cache_layout != "nhd" or pool.k_scale_buffer is not None:
        return None
    pairs = enumerate(zip(pool.k_buffer, pool.v_buffer))
    return {f"{kind}{layer}": tensor for layer, pair in pairs for kind, tensor in zip("kv", pair)}
