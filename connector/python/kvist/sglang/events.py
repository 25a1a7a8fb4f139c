"""KV events in SGLang's own terms: where kvistd has what this engine knows of, for routers that listen to its publisher.

What is told and when: `kvist.placements`. Here is what SGLang calls it. Media: CPU_PINNED (kvistd's DRAM), DISK (its SSD), EXTERNAL (a store beyond the
node, as far as kvistd's index has it), beside the tree's own GPU. Blocks are SGLang's pages, with the hashes that its own events have: of the tokens
and the salt; in the dynamo format, or where an adapter has a public name, of the adapter, too.
"""

import hashlib
from array import array
from typing import NamedTuple

from sglang.srt.disaggregation.kv_events import (
    BlockRemoved,
    BlockStored,
    StorageMedium,
    kv_event_namespace_seed,
    namespaced_block_hash,
)
from sglang.srt.mem_cache.events import KvEventLoraNames
from sglang.srt.mem_cache.utils import get_hash_str, hash_str_to_int64

from kvist.client import Client, Tier
from kvist.hangs import HangWatch
from kvist.placements import KEY_BYTES, PlacedChunk, Placements
from kvist.sglang.tracked import Tracked

_MEDIA = {
    Tier.IN_DRAM: StorageMedium.CPU,
    Tier.ON_SSD: StorageMedium.DISK,
    Tier.IN_REMOTE: StorageMedium.EXTERNAL,
}


class PageHashes:
    """Of a request's pages, from the first on, extended as they are asked for. `lora`: the adapter's public name, if it has one."""

    __slots__ = ("_last", "_seed", "lora", "numbers")

    def __init__(self, tracked: Tracked, names: KvEventLoraNames, dynamo: bool) -> None:
        extra_key, salt = tracked.extra_key, tracked.salt
        self.numbers: list[int] = []
        if dynamo:
            self.lora = names.resolve(extra_key)
            self._seed = kv_event_namespace_seed(extra_key=extra_key, cache_salt=salt)
        else:
            self.lora = names.get(extra_key)
            named = extra_key if self.lora is not None else None
            self._seed = kv_event_namespace_seed(extra_key=named, cache_salt=None)
        # SGLang's own root of a chain: that of storage keys where nothing parts requests, which is none.
        self._last = hashlib.sha256(b"sglang-cache-salt-v1\0" + salt.encode()).hexdigest() if salt is not None else None

    def extend(self, tokens: array, pages: int, page_tokens: int) -> None:
        """To so many pages of the request's tokens."""
        known = len(self.numbers)
        if pages <= known:
            return
        hashes = get_hash_str(tokens[known * page_tokens : pages * page_tokens], self._last, page_size=page_tokens)
        self._last = hashes[-1]
        self.numbers += [namespaced_block_hash(hash_str_to_int64(page), namespace_seed=self._seed) for page in hashes]


class _Told(NamedTuple):
    """A request with its tokens, as placements.Prompt."""

    events: "KvEvents"
    tracked: Tracked
    tokens: array

    def keys(self, first: int, until: int) -> bytes:
        return self.tracked.prompt.keys(first, until)

    def chunks(self, first: int, until: int, age: int) -> list[PlacedChunk]:
        events = self.events
        size, pages = events.chunk_tokens, events.chunk_pages
        until = min(until, len(self.tokens) // size)
        if until <= first:
            return []
        hashes = events.hashes_of(self.tracked)
        hashes.extend(self.tokens, until * pages, events.page_tokens)
        keys = self.tracked.prompt.keys(first, until)
        return [
            PlacedChunk(
                keys[(number - first) * KEY_BYTES : (number - first + 1) * KEY_BYTES],
                hashes.numbers[number * pages - 1] if number else None,
                hashes.numbers[number * pages : (number + 1) * pages],
                self.tokens[number * size : (number + 1) * size],
                of=(self.tracked.salt, hashes.lora),
                extra=None,
                age=age,
            )
            for number in range(first, until)
        ]


class _Terms:
    """placements.Terms: SGLang's events."""

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens

    def removed(self, tier: Tier, hashes: list[int]) -> BlockRemoved:
        return BlockRemoved(block_hashes=hashes, medium=_MEDIA[tier])

    def stored(self, run: list[PlacedChunk]) -> BlockStored:
        salt, lora = run[0].of
        tokens: list[int] = []
        for chunk in run:
            tokens.extend(chunk.tokens)
        return BlockStored(
            block_hashes=[page for chunk in run for page in chunk.hashes],
            parent_block_hash=run[0].parent,
            token_ids=tokens,
            block_size=self._page_tokens,
            lora_id=None,
            medium=_MEDIA[run[0].tier],
            cache_salt=salt,
            lora_name=lora,
        )


class KvEvents:
    """Of the rank that publishes. Threads: the scheduler's."""

    def __init__(self, *, page_tokens: int, chunk_tokens: int, lora_names: KvEventLoraNames, dynamo: bool) -> None:
        """lora_names: SGLang's own table, borrowed; dynamo: the format that it publishes."""
        self.page_tokens = page_tokens
        self.chunk_tokens = chunk_tokens
        self.chunk_pages = chunk_tokens // page_tokens
        self._lora_names = lora_names
        self._dynamo = dynamo
        self._placements = Placements(_Terms(page_tokens), group=0)

    @property
    def age(self) -> int:
        """Of what this engine stores and finds: grows when all of that is forgotten."""
        return self._placements.age

    def hashes_of(self, tracked: Tracked) -> PageHashes:
        if tracked.page_hashes is None:
            tracked.page_hashes = PageHashes(tracked, self._lora_names, self._dynamo)
        return tracked.page_hashes

    def found(self, tracked: Tracked, tokens: array, chunks: int) -> None:
        """A lookup has found the first `chunks` of a request's prompt."""
        self._placements.found(_Told(self, tracked, tokens), chunks)

    def stored(self, tracked: Tracked, tokens: array, first: int, until: int, age: int) -> None:
        """kvistd has taken in the request's chunks [first, until), of a store that was begun at this `age`."""
        self._placements.stored(_Told(self, tracked, tokens), first, until, age)

    def forget_all(self, client: Client) -> None:
        """Nothing that was stored or found will be found by this engine again."""
        self._placements.forget_all(client)

    def take(self, client: Client, watch: HangWatch) -> list:
        """What has changed. Once a step."""
        return self._placements.take(client, watch)
