"""SGLang's storage interface over kvist."""

import functools
import hashlib
import logging
import os
import threading
import time
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransferResult,
)

from kvist.sglang import identity
from kvist.sglang.host_pool import HostPool, open_session
from kvist.sglang.metrics import Metrics
from kvist.sglang.pages import KEY_BYTES, Pages
from kvist.sglang.settings import WANTED, Settings
from kvist.sglang.staging import Staging
from kvist.sglang.stats import CALLS_WITHOUT_KVISTD, TOTALS, Stats

logger = logging.getLogger(__name__)

# [rank] how often it was cleared. SGLang may attach a backend anew in the same process; what was cleared stays so.
_clears: dict[tuple, int] = {}


def _never_raises(default):
    """SGLang's storage threads end for ever at an exception: such a call answers `default(its arguments)` instead and says so."""

    def decorate(call):
        @functools.wraps(call)
        def guarded(self, *args, **kwargs):
            try:
                return call(self, *args, **kwargs)
            except Exception:
                logger.exception("kvist: %s failed; SGLang goes on without", call.__name__)
                return default(*args, **kwargs)

        return guarded

    return decorate


def _none_of(keys, *_, **__):
    return [False] * len(keys)


def _none_of_each(transfers, *_, **__):
    return {transfer.name: [False] * len(transfer.keys or []) for transfer in transfers}


class KvistStorage(HiCacheStorage):
    """One rank's third cache level in kvistd.

    A page of SGLang is a chunk of kvistd, named by SGLang's page hash. Each rank is an engine of its own to kvistd (SGLang takes the
    least over its ranks itself), and each of its host pools has a session.

    Threads: SGLang's, any number. Errors: the constructor and the register calls raise where SGLang must not start like this; nothing
    else raises. Every call is bounded by the deadline, but that a load is waited for until kvistd is done with the pages, or gone.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, _kwargs: dict | None = None) -> None:
        self._config = storage_config
        extra = storage_config.extra_config or {}
        self._settings = Settings.of(extra)
        self._settings.refuse_other_versions()
        if extra.get("allocator") != "shm":
            raise ValueError(
                f'"allocator" in SGLang\'s extra config is {extra.get("allocator")!r}; kvistd can reach a pool of "shm" only: {WANTED}'
            )
        if not extra.get("interface_v1"):
            logger.warning(
                'kvist: without "interface_v1": 1 in the extra config SGLang copies each page once more, page by page: %s',
                WANTED,
            )
        if getattr(storage_config, "dcp_size", 1) > 1 or getattr(storage_config, "should_split_heads", False):
            raise ValueError(
                "kvist doesn't serve decode context parallel (dcp_size) nor heads split between TP sizes (tp_lcm_size)"
            )
        identity.check_isolation(identity.server_args())
        self._rank = (
            storage_config.model_name,
            storage_config.tp_rank,
            storage_config.pp_rank,
            getattr(storage_config, "dp_rank", 0),
        )
        self._pools: dict[str, HostPool] = {}
        self._staging: Staging | None = None
        self._staging_pages: Pages | None = None
        self._staging_lock = threading.Lock()
        self._stats = Stats()
        self._metrics: Metrics | None = None
        if getattr(storage_config, "enable_storage_metrics", False):
            counts = {**TOTALS, CALLS_WITHOUT_KVISTD: "calls that found kvistd away or late"}
            model, tp_rank, pp_rank, dp_rank = self._rank
            self._metrics = Metrics(counts, model=str(model), tp_rank=tp_rank, pp_rank=pp_rank, dp_rank=dp_rank)

    # ---- attaching ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._register(PoolName.KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: str) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(host_pool_name, host_pool)

    def _register(self, name: str, pool: Any) -> None:
        name = str(getattr(name, "value", name))
        known = self._pools.get(name)
        if known is not None and known.pool is pool:
            return
        if name == PoolName.KV.value:
            self._close_staging()
        if known is not None:
            known.pages.close()
        self._pools[name] = HostPool(name, pool, self._config, self._settings, self._config.is_mla_model)
        layout = self._pools[name].layout
        logger.info(
            "kvist: serving the host pool %s: %d pages of %d tokens, %d bytes in %d pieces each",
            name,
            layout.pages,
            layout.page_tokens,
            layout.page_bytes,
            layout.segments,
        )

    @property
    def _main(self) -> HostPool:
        return self._pools[PoolName.KV.value]

    # ---- keys ----

    def _keys(self, keys: list[str]) -> list[bytes]:
        found = [bytes.fromhex(key) if len(key) == 2 * KEY_BYTES else hashlib.sha256(key.encode()).digest() for key in keys]
        cleared = _clears.get(self._rank, 0)
        if cleared == 0:
            return found
        prefix = f"{_launch()} {cleared} ".encode()
        return [hashlib.sha256(prefix + key).digest() for key in found]

    def _before(self, extra_info: Any | None) -> list[bytes]:
        """The pages before those of a call, which SGLang gives with `hicache_storage_pass_prefix_keys`."""
        return self._keys(getattr(extra_info, "prefix_keys", None) or [])

    # ---- whole pages of the host pool: the quick way ----

    @_never_raises(lambda *_, **__: 0)
    def batch_exists(self, keys: list[str], extra_info: Any | None = None) -> int:
        count = self._main.pages.present(self._keys(keys), self._before(extra_info))
        self._stats.asked(len(keys), count)
        return count

    @_never_raises(_none_of)
    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any | None = None) -> list[bool]:
        return self._get(self._main, keys, host_indices, extra_info)

    @_never_raises(_none_of)
    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any | None = None) -> list[bool]:
        return self._set(self._main, keys, host_indices, extra_info)

    def _get(self, pool: HostPool, keys: list[str], host_indices: torch.Tensor | None, extra_info: Any | None) -> list[bool]:
        pages = pool.page_numbers(host_indices, keys)
        start = time.monotonic()
        got = pool.pages.load(self._keys(keys), pages, self._before(extra_info))
        self._stats.loaded(sum(got), pool.layout.page_bytes, time.monotonic() - start)
        return got

    def _set(self, pool: HostPool, keys: list[str], host_indices: torch.Tensor | None, extra_info: Any | None) -> list[bool]:
        pages = pool.page_numbers(host_indices, keys)
        start = time.monotonic()
        done = pool.pages.store(self._keys(keys), pages, self._before(extra_info))
        stored = sum(done)
        self._stats.stored(stored, len(keys) - stored, pool.layout.page_bytes, time.monotonic() - start)
        return done

    # ---- several pools ----

    @_never_raises(lambda *_, **__: PoolTransferResult.empty())
    def batch_exists_v2(
        self, keys: list[str], pool_transfers: list | None = None, extra_info: Any | None = None
    ) -> PoolTransferResult:
        names = self._keys(keys)
        count = self._main.pages.present(names, self._before(extra_info))
        self._stats.asked(len(keys), count)
        hits = {PoolName.KV: count} if count else {}
        usable = set(range(1, count + 1))  # lengths of the prefix at which all pools can go on
        for transfer in pool_transfers or []:
            pool = self._pools.get(str(getattr(transfer.name, "value", transfer.name)))
            if not usable or transfer.hit_policy == getattr(PoolHitPolicy, "BLOCK_GROUPS", None):
                continue
            if pool is None:
                usable = set()
            elif transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                covered = pool.pages.present(names[:count], [])
                usable = {length for length in usable if length <= covered}
                if covered:
                    hits[transfer.name] = covered
            else:
                trailing = max(1, len(transfer.keys or ()))
                reach = _lengths_of_trailing(pool.pages.present_each(names[:count]), trailing)
                usable &= reach
                if reach:
                    hits[transfer.name] = max(reach)
        result = PoolTransferResult(max(usable, default=0), hits)
        if hasattr(result, "restorable_prefix_pages"):
            result.restorable_prefix_pages = sorted(usable)
        return result

    @_never_raises(_none_of_each)
    def batch_get_v2(self, transfers: list, extra_info: Any | None = None) -> dict[str, list[bool]]:
        return {transfer.name: self._one(self._get, transfer, extra_info) for transfer in transfers}

    @_never_raises(_none_of_each)
    def batch_set_v2(self, transfers: list, extra_info: Any | None = None) -> dict[str, list[bool]]:
        return {transfer.name: self._one(self._set, transfer, extra_info) for transfer in transfers}

    def _one(self, copy, transfer: Any, extra_info: Any | None) -> list[bool]:
        keys = transfer.keys or []
        try:
            pool = self._pools[str(getattr(transfer.name, "value", transfer.name))]
            return copy(pool, keys, transfer.host_indices, extra_info)
        except Exception:
            logger.exception("kvist: the pages of pool %s were not copied; SGLang goes on without", transfer.name)
            return [False] * len(keys)

    # ---- tensors: the generic way, with a copy more ----

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    @_never_raises(lambda *_, **__: None)
    def get(self, key: str, target_location: Any | None = None, target_sizes: Any | None = None) -> torch.Tensor | None:
        return self.batch_get([key], [target_location])[0]

    @_never_raises(lambda keys, *_, **__: [None] * len(keys))
    def batch_get(
        self, keys: list[str], target_locations: Any | None = None, target_sizes: Any | None = None
    ) -> list[torch.Tensor | None]:
        targets = list(target_locations) if target_locations is not None else [None] * len(keys)
        found: list[torch.Tensor | None] = [None] * len(keys)
        staging, pages = self._stage()
        if len(targets) != len(keys) or any(t is not None and not staging.fits(t) for t in targets):
            raise ValueError(f"{len(keys)} pages need as many targets of {staging.layout.page_bytes} bytes")
        names = self._keys(keys)
        with staging.lock:
            for first in range(0, len(keys), staging.layout.pages):
                part = names[first : first + staging.layout.pages]
                start = time.monotonic()
                got = pages.load(part, list(range(len(part))), [])
                self._stats.loaded(sum(got), staging.layout.page_bytes, time.monotonic() - start)
                for page in range(sum(got)):
                    found[first + page] = staging.take(page, targets[first + page])
                if not all(got):
                    break
        return found

    @_never_raises(lambda *_, **__: False)
    def set(
        self, key: str, value: Any | None = None, target_location: Any | None = None, target_sizes: Any | None = None
    ) -> bool:
        return self.batch_set([key], [value])

    @_never_raises(lambda *_, **__: False)
    def batch_set(
        self,
        keys: list[str],
        values: Any | None = None,
        target_locations: Any | None = None,
        target_sizes: Any | None = None,
    ) -> bool:
        values = list(values) if values is not None else []
        staging, pages = self._stage()
        if len(values) != len(keys) or not all(staging.fits(value) for value in values):
            raise ValueError(f"{len(keys)} pages need as many tensors of {staging.layout.page_bytes} bytes")
        names = self._keys(keys)
        with staging.lock:
            for first in range(0, len(keys), staging.layout.pages):
                part = names[first : first + staging.layout.pages]
                for page, value in enumerate(values[first : first + len(part)]):
                    staging.put(page, value)
                start = time.monotonic()
                done = pages.store(part, list(range(len(part))), [])
                self._stats.stored(sum(done), len(part) - sum(done), staging.layout.page_bytes, time.monotonic() - start)
                if not all(done):
                    return False
        return True

    def _stage(self) -> tuple[Staging, Pages]:
        with self._staging_lock:
            if self._staging_pages is None:
                staging = Staging(self._main.layout)
                self._staging_pages = open_session(
                    "staging", self._config, self._main.space, staging.layout, staging.write_page, self._settings
                )
                self._staging = staging
            return self._staging, self._staging_pages

    # ---- the rest ----

    @_never_raises(lambda *_, **__: False)
    def clear(self) -> bool:
        """From now on nothing that was stored before is found by this launch of SGLang. What it takes is evicted in time; the operator's
        `kvistctl clear` frees it at once, for all engines.

        All ranks of a launch agree on the new names, so those of MLA go on sharing. A new launch finds what was stored before any clear.
        """
        _clears[self._rank] = _clears.get(self._rank, 0) + 1
        logger.info("kvist: cleared: pages have new names from here on; `kvistctl clear` frees what the old ones take")
        return True

    @_never_raises(lambda *_, **__: None)
    def get_stats(self) -> Any | None:
        """SGLang's scheduler asks for it in each of its rounds."""
        if self._metrics is not None:
            self._metrics.tell(self.totals, away=not all(pool.pages.connected for pool in self._pools.values()))
        return self._stats.take()

    @property
    def totals(self) -> dict[str, int]:
        """Pages asked for, found, loaded, stored and refused since the start; calls that found kvistd away or late."""
        away = sum(pool.pages.seen_away for pool in self._pools.values())
        return {**self._stats.totals, CALLS_WITHOUT_KVISTD: away}

    @_never_raises(lambda *_, **__: None)
    def close(self) -> None:
        for pool in self._pools.values():
            pool.pages.close()
        self._close_staging()
        if self._metrics is not None:
            self._metrics.close()

    def _close_staging(self) -> None:
        with self._staging_lock:
            if self._staging_pages is not None:
                self._staging_pages.close()
                self._staging.close()
            self._staging_pages = self._staging = None


def _lengths_of_trailing(there: list[bool], trailing: int) -> set[int]:
    """The prefix lengths whose last `trailing` pages are there (all of them, where there are fewer)."""
    lengths, run = set(), 0
    for length, page_there in enumerate(there, start=1):
        run = run + 1 if page_there else 0
        if run >= min(trailing, length):
            lengths.add(length)
    return lengths


@functools.cache
def _launch() -> str:
    """Names this launch of SGLang, equally in all its ranks on this machine: by their parent process, which is never named so again."""
    parent = os.getppid() or os.getpid()  # 0: a container's first process
    with (
        open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as boot,
        open(f"/proc/{parent}/stat", encoding="utf-8") as stat,
    ):
        return (
            f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')} {parent} {stat.read().rsplit(')', 1)[1].split()[19]}"
        )
