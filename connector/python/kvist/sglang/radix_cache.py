"""SGLang's radix tree, with kvistd behind it: what the tree lacks of a prompt is loaded, what it takes is stored.

It derives from UnifiedRadixCache, the tree that SGLang 0.5.23 makes by default: its own eviction policies, sessions and metrics stay, and
`create_unified_radix_cache(cache_class=...)` is there for such classes. (The plain RadixCache lacks those; an external cache linker would have
its requests aborted when a load fails.) Only SGLang's own calls are used: a hit is promised as tokens on the host, `init_load_back` answers
None, which is "ask again", until they are in the tree.
"""

import logging
from typing import Any

import sglang
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    EvictParams,
    EvictResult,
    InitLoadBackParams,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_unified_radix_cache
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_disagg, get_exec, get_memory, get_parallel, get_spec

from kvist.describe import Space
from kvist.sglang import device_pool, identity
from kvist.sglang.events import KvEvents
from kvist.sglang.metrics import Metrics
from kvist.sglang.ranks import Ranks
from kvist.sglang.settings import TreeSettings
from kvist.sglang.tree_side import COUNTS, TreeSide

logger = logging.getLogger(__name__)


class KvistRadixCache(UnifiedRadixCache):
    """`side` is there from the first request on; what it does is said there."""

    side: TreeSide | None = None

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        side = self.side
        if side is None or params.req is None or not side.serves(params.req):
            return super().match_prefix(params)
        side.before_match(len(params.key) + (params.req.sampling_params.max_new_tokens or 0) + 2 * self.page_size)
        return side.match(params, super().match_prefix(params))

    def init_load_back(self, params: InitLoadBackParams) -> tuple[int, Any] | None:
        return super().init_load_back(params) if self.side is None else self.side.load(params.req)

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        super().checkpoint(req, up_to=up_to, **kwargs)
        if self.side is not None:
            self.side.checkpoint(req)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        if self.side is not None:
            self.side.drop(req.rid)

    def release_aborted_request(self, request: CacheRequestHandle) -> None:
        super().release_aborted_request(request)
        if self.side is not None:
            self.side.aborted(request)

    def evict(self, params: EvictParams) -> EvictResult:
        if self.side is not None:
            self.side.progress()
        return super().evict(params)

    def evict_for_alloc(self, params: EvictParams, **kwargs: Any) -> EvictResult:
        if self.side is not None:
            self.side.before_alloc(self.token_to_kv_pool_allocator.available_size() + params.num_tokens)
        return super().evict_for_alloc(params, **kwargs)

    def flush_pending_backups(self) -> None:
        """SGLang calls it after every batch."""
        super().flush_pending_backups()
        if self.side is not None:
            self.side.after_batch()

    def check_hicache_events(self) -> None:
        if self.side is not None:
            self.side.progress()

    def take_events(self) -> list:
        events = super().take_events()
        return events if self.side is None else events + self.side.take_events()

    def protected_size(self) -> int:
        return super().protected_size() + (self.side.tokens_in_flight if self.side is not None else 0)

    def full_protected_size(self) -> int:
        return super().full_protected_size() + (self.side.tokens_in_flight if self.side is not None else 0)

    def reset(self) -> None:
        if self.side is not None:
            self.side.reset()
        super().reset()

    def release_host_resources(self) -> None:
        side, self.side = self.side, None
        if side is not None:
            side.close()
        super().release_host_resources()


def _refuse(ctx: TreeCacheBuildContext) -> None:
    """Raises ValueError for engines whose KV it can't keep, or not yet."""
    params = ctx.params
    allocator = params.token_to_kv_pool_allocator
    reasons = {
        "--disable-radix-cache is set": ctx.disable_radix_cache,
        "--enable-hierarchical-cache is set: take one way to kvist, that or this": ctx.enable_hierarchical_cache,
        "--enable-lmcache is set": get_memory().enable_lmcache,
        "--enable-flexkv is set": get_memory().enable_flexkv,
        "the model has sliding windows or recurrent states": ctx.is_hybrid_swa or ctx.is_hybrid_ssm,
        "speculative decoding is on": params.is_eagle or get_spec().speculative_algorithm is not None,
        "prefill and decode are parted": get_disagg().disaggregation_mode != "null",
        "a diffusion model is served": get_exec().dllm.dllm_algorithm is not None,
        "there is pipeline parallelism": params.pp_size > 1,
        "there is context parallelism": params.attn_cp_size > 1 or get_parallel().dcp_enabled,
        f"KV is allocated by {type(allocator).__name__}": type(allocator)
        not in (PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator),
    }
    found = [reason for reason, seen in reasons.items() if seen]
    if found:
        raise ValueError(f"--radix-cache-backend kvist doesn't serve this engine: {'; '.join(found)}")


def _metrics(args: Any, params: CacheInitParams, ranks: Ranks) -> Metrics | None:
    if not params.enable_metrics:
        return None
    name = getattr(args, "served_model_name", None) or args.model_path
    parallel = get_parallel()
    dp_rank = parallel.attn_dp_rank if args.enable_dp_attention else parallel.dp_rank or 0
    return Metrics(COUNTS, model=name, tp_rank=ranks.rank, pp_rank=params.pp_rank, dp_rank=dp_rank)


def _events(params: CacheInitParams, space: Space, ranks: Ranks) -> KvEvents | None:
    """SGLang publishes those of the first rank."""
    if not params.enable_kv_cache_events or ranks.rank > 0:
        return None
    return KvEvents(
        page_tokens=space.page_tokens,
        chunk_tokens=space.chunk_tokens,
        lora_names=params.kv_event_lora_names,
        dynamo=params.dynamo_kv_event_format,
    )


def build(ctx: TreeCacheBuildContext) -> KvistRadixCache:
    """What --radix-cache-backend kvist makes. Raises ValueError or KvistError where SGLang must not start like this."""
    if not hasattr(UnifiedRadixCache, "checkpoint") or not hasattr(UnifiedRadixCache, "flush_pending_backups"):
        raise ImportError(f"kvist's radix cache serves SGLang 0.5.23; this is {sglang.__version__}")
    settings = TreeSettings.of(get_memory().hicache_storage_backend_extra_config)
    settings.refuse_other_versions()
    _refuse(ctx)
    args, params = ctx.server_args, ctx.params
    ranks = Ranks(params.attn_tp_cache_group or params.tp_cache_group)
    pool = params.token_to_kv_pool_allocator.get_kvcache()
    described = device_pool.describe(pool, params.page_size, ranks.size)
    space = identity.tree_space(args, pool, described.groups, params.page_size, settings, ranks.size)
    cache = create_unified_radix_cache(ctx, cache_class=KvistRadixCache)
    cache.side = TreeSide(
        cache,
        ranks,
        space,
        described.memory,
        settings,
        metrics=_metrics(args, params, ranks),
        events=_events(params, space, ranks),
    )
    logger.info("kvist: the radix cache looks up and keeps chunks of %d tokens in kvistd", space.chunk_tokens)
    return cache
