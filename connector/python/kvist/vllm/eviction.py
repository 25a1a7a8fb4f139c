"""Stores on eviction: only what the block pool is about to reuse, ahead of need.

What stays in the engine's own prefix cache needn't be written anywhere. Each full chunk is remembered with its blocks; each step looks at the
head of the pool's free queue, and a chunk that has a block there is stored, with those before it that aren't yet: without them nobody would
find it. vLLM frees a request's last blocks first, so those before it are still there.

Its blocks stay where they are in the queue: storing a chunk doesn't make it recent. What kvistd didn't take is offered once more, if its blocks
come up again before they are reused.
"""

from collections.abc import Iterator
from itertools import islice

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from kvist.placements import PlacedChunk


class Chunk:
    """A full chunk in the engine's blocks. blocks: [kvist's group], empty where it is out of the window. Valid while all its blocks hold what
    they held. stored: or on its way. to_tell: what KV events say of it, if they do."""

    __slots__ = ("_hashes", "blocks", "key", "offers_left", "parent", "parent_key", "stored", "to_tell")

    def __init__(
        self,
        key: bytes,
        parent_key: bytes,
        parent: "Chunk | None",
        blocks: list[list[KVCacheBlock]],
        to_tell: PlacedChunk | None,
    ) -> None:
        self.to_tell = to_tell
        self.key = key
        self.parent_key = parent_key
        self.parent = parent
        self.blocks = blocks
        self._hashes = [block.block_hash for block in self.all_blocks()]
        self.stored = False
        self.offers_left = 2

    def all_blocks(self) -> Iterator[KVCacheBlock]:
        for blocks in self.blocks:
            yield from blocks

    def holds(self) -> bool:
        return all(block.block_hash == known and known is not None for block, known in zip(self.all_blocks(), self._hashes))


class EvictionStores:
    def __init__(self, pool: BlockPool, ahead: int) -> None:
        self._pool = pool
        self._ahead = ahead
        self._chunks: dict[int, Chunk] = {}  # [block]

    def find(self, block: KVCacheBlock, key: bytes) -> Chunk | None:
        """The chunk of this key that has this block."""
        chunk = self._chunks.get(block.block_id)
        return chunk if chunk is not None and chunk.key == key and chunk.holds() else None

    def add(self, chunk: Chunk) -> None:
        for block in chunk.all_blocks():
            self._chunks[block.block_id] = chunk

    def due(self) -> list[list[Chunk]]:
        """Runs of chunks to store now, each from its first unstored one on."""
        runs = []
        for block in list(islice(self._free(), self._ahead)):
            chunk = self._chunks.pop(block.block_id, None)
            if chunk is None or chunk.stored:
                continue
            run = []
            while chunk is not None and not chunk.stored and chunk.holds():
                run.append(chunk)
                chunk = chunk.parent
            if chunk is not None and not chunk.stored:
                continue  # something before it is gone, so nobody could find it
            for kept in run:
                kept.stored = True
                kept.offers_left -= 1
            runs.append(run[::-1])
        return runs

    def ended(self, run: list[Chunk], kept: bool) -> None:
        """kvistd has taken all of a run of `due`, or hasn't."""
        for chunk in run:
            if kept:
                chunk.parent = None  # a chain ends at what is stored: nothing keeps a whole conversation's chunks alive
            elif chunk.offers_left > 0 and chunk.holds():
                chunk.stored = False
                self.add(chunk)
            else:
                return  # nor would those behind it be found

    def forget(self) -> None:
        """Nothing that was remembered is to be stored any more."""
        self._chunks.clear()

    def _free(self) -> Iterator[KVCacheBlock]:
        queue = self._pool.free_block_queue
        block = queue.fake_free_list_head.next_free_block
        while block is not None and block is not queue.fake_free_list_tail:
            yield block
            block = block.next_free_block
