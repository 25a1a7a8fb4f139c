"""KV events in vLLM's own terms: where kvistd has what this engine knows of, for routers that listen to its publisher.

What is told and when: `kvist.placements`. Here is what vLLM calls it. Media: CPU (kvistd's DRAM), STORAGE LOCAL (its SSD), STORAGE REMOTE (a store
beyond the node, as far as kvistd's index has it). Events are of one cache group, the first that needs whole prefixes, with its blocks, hashes and number
as vLLM's own events have them, and tell all that a consumer without memory needs.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    ExternalBlockHash,
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    to_event_extra_keys,
)
from vllm.v1.request import Request

import kvist
from kvist.hangs import HangWatch
from kvist.placements import PlacedChunk, Placements
from kvist.vllm.groups import Tables
from kvist.vllm.prompt import Prompt

_PLACES = {
    kvist.Tier.IN_DRAM: (MEDIUM_CPU, "LOCAL"),
    kvist.Tier.ON_SSD: (MEDIUM_STORAGE, "LOCAL"),
    kvist.Tier.IN_REMOTE: (MEDIUM_STORAGE, "REMOTE"),
}


class _Blocks:
    """The group whose blocks are told of."""

    def __init__(self, pool: BlockPool, tables: Tables) -> None:
        self.group = tables.first_full
        self.table, self.per_chunk = list(tables)[self.group]
        self.tokens = tables.block_tokens[self.group]
        self.scale = self.tokens // pool.hash_block_size  # hashes of a block
        self.chunk_tokens = tables.chunk_tokens
        # vLLM's own conversion reads its environment each time: 1 us.
        is_int = isinstance(maybe_convert_block_hash(BlockHash(bytes(32))), int)
        self.external = _low_64_bits if is_int else _as_it_is


class _Told(NamedTuple):
    """A request, as placements.Prompt."""

    blocks: _Blocks
    request: Request
    prompt: Prompt

    def keys(self, first: int, until: int) -> bytes:
        return self.prompt.keys(first, until)

    def chunk(self, number: int, age: int, before: PlacedChunk | None = None) -> PlacedChunk | None:
        """None where vLLM hasn't hashed its blocks yet."""
        request, blocks = self.request, self.blocks
        hashes, external, scale = request.block_hashes, blocks.external, blocks.scale
        begin, end = number * blocks.per_chunk, (number + 1) * blocks.per_chunk
        if end * scale > len(hashes):
            return None
        adapter = request.lora_request
        lora = (adapter.adapter_id, adapter.name) if adapter is not None else None
        plain = lora is None and not request.mm_features and not request.cache_salt
        return PlacedChunk(
            self.prompt.keys(number, number + 1),
            external(hashes[begin * scale - 1]) if begin else None,
            [external(hashes[block * scale + scale - 1]) for block in range(begin, end)],
            array("I", request.all_token_ids[number * blocks.chunk_tokens : (number + 1) * blocks.chunk_tokens]),
            of=(lora, plain),
            extra=None if plain else list(self._extra_keys(begin, end)),
            age=age,
        )

    def _extra_keys(self, begin: int, end: int) -> Iterator[tuple | None]:
        image = 0
        size = self.blocks.tokens
        for block in range(begin, end):
            keys, image = generate_block_hash_extra_keys(self.request, block * size, (block + 1) * size, image)
            yield keys


class _Terms:
    """placements.Terms: vLLM's events."""

    def __init__(self, blocks: _Blocks) -> None:
        self._table = blocks.table
        self._block_tokens = blocks.tokens

    def removed(self, tier: kvist.Tier, hashes: list[ExternalBlockHash]) -> BlockRemoved:
        medium, locality = _PLACES[tier]
        return BlockRemoved(block_hashes=hashes, medium=medium, group_idx=self._table, locality=locality)

    def stored(self, run: list[PlacedChunk]) -> BlockStored:
        first = run[0]
        medium, locality = _PLACES[first.tier]
        lora, plain = first.of
        adapter_id, adapter = lora or (None, None)
        extra_keys = None if plain else to_event_extra_keys([keys for chunk in run for keys in chunk.extra])
        tokens: list[int] = []
        for chunk in run:
            tokens.extend(chunk.tokens)
        return BlockStored(
            block_hashes=[block for chunk in run for block in chunk.hashes],
            parent_block_hash=first.parent,
            token_ids=tokens,
            block_size=self._block_tokens,
            lora_id=adapter_id,
            medium=medium,
            lora_name=adapter,
            extra_keys=extra_keys,
            group_idx=self._table,
            locality=locality,
        )


class KvEvents:
    """Threads: the scheduler's."""

    def __init__(self, pool: BlockPool, tables: Tables) -> None:
        self._pool = pool
        self._prefix_cache = pool.cached_block_hash_to_block  # another object after each reset
        self._blocks = _Blocks(pool, tables)
        self._placements = Placements(_Terms(self._blocks), self._blocks.group)

    @property
    def age(self) -> int:
        """Of what this engine stores and finds: grows when all of that is forgotten."""
        return self._placements.age

    def found(self, request: Request, prompt: Prompt, chunks: int) -> None:
        """A lookup has found the request's first `chunks`."""
        self._placements.found(_Told(self._blocks, request, prompt), chunks)

    def stored(self, request: Request, prompt: Prompt, first: int, until: int, age: int) -> None:
        """kvistd has taken in the request's chunks [first, until), of a store that was begun at this `age`."""
        self._placements.stored(_Told(self._blocks, request, prompt), first, until, age)

    def chunk_of(self, request: Request, prompt: Prompt, number: int) -> PlacedChunk | None:
        """Of a request that may be gone when it is stored; for `stored_chunks`."""
        return _Told(self._blocks, request, prompt).chunk(number, self.age) if self._placements.asks else None

    def stored_chunks(self, chunks: Iterable[PlacedChunk]) -> None:
        self._placements.add(chunks)

    def forget_all(self, client: kvist.Client) -> None:
        """Nothing that was stored or found will be found by this engine again."""
        self._placements.forget_all(client)

    def take(self, client: kvist.Client, watch: HangWatch) -> list[KVCacheEvent]:
        """What has changed. Once a step."""
        if self._prefix_cache is not self._pool.cached_block_hash_to_block:
            # vLLM has told that all blocks are cleared.
            self._prefix_cache = self._pool.cached_block_hash_to_block
            self._placements.tell_again()
        return self._placements.take(client, watch)


def _low_64_bits(block: BlockHash) -> int:
    return int.from_bytes(block[-8:], "big")


def _as_it_is(block: BlockHash) -> bytes:
    return block
