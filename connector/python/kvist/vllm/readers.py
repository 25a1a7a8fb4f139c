"""Which stores read which blocks, so that none reads a block that vLLM has given to somebody else.

vLLM frees, preempts and aborts as it likes, and resets its cache: a store that is here holds no reference. When the pool hands out a block that one still
reads, the store is stopped at the beginning of that very step, before anybody writes into the block; a store that is stopped is never seen.
That is rare: a store takes a step or two, and freed blocks are handed out last. Only those that vLLM's own cache hasn't kept, out of windows or with
states, are handed out first.
"""

from collections.abc import Sequence

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock


class _Reader:
    """A store, as one of a block's readers; `then`: the one that was there before it. The pool calls it once, when it hands the block out."""

    __slots__ = ("job", "stopped", "then")

    def __init__(self, job: int, stopped: set[int], then: "_Reader | None" = None) -> None:
        self.job = job
        self.stopped: set[int] | None = stopped  # None: it has ended
        self.then = then

    def __call__(self, block: KVCacheBlock) -> None:
        if self.stopped is not None:
            self.stopped.add(self.job)
        if self.then is not None:
            self.then(block)


class Readers:
    def __init__(self, pool: BlockPool) -> None:
        self._watchers = pool._reuse_watchers  # [block] called when the pool hands it out, and forgotten then
        self._readers: dict[int, list[_Reader]] = {}  # [job]
        self._stopped: set[int] = set()

    def begin(self, job: int, blocks: Sequence[int]) -> None:
        """The blocks may have references or none: they stay where they are in the pool's queue."""
        watchers = self._watchers
        reader = _Reader(job, self._stopped)
        mine = self._readers[job] = [reader]
        if watchers.keys().isdisjoint(blocks):  # nearly always
            watchers.update(dict.fromkeys(blocks, reader))
            return
        for block in blocks:
            before = watchers.get(block)
            if before is None or (type(before) is _Reader and before.stopped is None and before.then is None):
                watchers[block] = reader
            else:  # another store reads it, too
                both = _Reader(job, self._stopped, before)
                mine.append(both)
                watchers[block] = both

    def end(self, job: int) -> None:
        for reader in self._readers.pop(job):
            reader.stopped = None
        self._stopped.discard(job)

    def take_stopped(self) -> list[int]:
        """Stores to stop before this step writes."""
        if not self._stopped:
            return []
        stopped = list(self._stopped)
        self._stopped.clear()
        return stopped
