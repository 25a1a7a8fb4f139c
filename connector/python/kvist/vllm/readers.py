"""Which stores read which blocks, so that none reads a block that vLLM has given to somebody else.

vLLM frees, preempts and aborts as it likes, and resets its cache: a store holds no reference. When the pool hands out a block that one still
reads, the store is stopped at the beginning of that very step, before anybody writes into the block; a store that is stopped is never seen.
That is rare: freed blocks are handed out last, and a store takes a step or two.
"""

from collections.abc import Iterable

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock


class Readers:
    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._stores: dict[int, set[int]] = {}  # [block] jobs that read it
        self._stopped: set[int] = set()

    def begin(self, job: int, blocks: list[KVCacheBlock]) -> None:
        """The blocks have a request's reference, which stays its own."""
        self._pool.touch(blocks)
        self._pool.unpin_blocks(blocks, self._reused)  # drops the reference again, and watches the block
        self._read(job, blocks)

    def begin_free(self, job: int, blocks: list[KVCacheBlock]) -> None:
        """Blocks that may have no reference at all: they stay where they are in the pool's free queue."""
        for block in blocks:
            self._pool._reuse_watchers[block.block_id] = self._reused
        self._read(job, blocks)

    def _read(self, job: int, blocks: Iterable[KVCacheBlock]) -> None:
        stores = self._stores
        for block in blocks:
            stores.setdefault(block.block_id, set()).add(job)

    def end(self, job: int, blocks: Iterable[KVCacheBlock]) -> None:
        for block in blocks:
            jobs = self._stores.get(block.block_id)
            if jobs is not None:
                jobs.discard(job)
                if not jobs:
                    del self._stores[block.block_id]
        self._stopped.discard(job)

    def _reused(self, block: KVCacheBlock) -> None:
        """The pool hands the block out, or forgets what is in it."""
        self._stopped |= self._stores.pop(block.block_id, set())

    def take_stopped(self) -> list[int]:
        """Stores to stop before this step writes."""
        if not self._stopped:
            return []
        stopped, self._stopped = list(self._stopped), set()
        return stopped
