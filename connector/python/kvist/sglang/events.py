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

from kvist.client import Client, Tier
from kvist.hangs import HangWatch
from kvist.placements import PlacedChunk, Placements
from kvist.sglang.tracked import Tracked

_MEDIA = {
    Tier.IN_DRAM: StorageMedium.CPU,
    Tier.ON_SSD: StorageMedium.DISK,
    Tier.IN_REMOTE: StorageMedium.EXTERNAL,
}


class _Namespace(NamedTuple):
    """What parts requests in SGLang's hashes, and in what is told. root: that the first page's hash begins with."""

    root: bytes
    seed: bytes | None
    salt: str | None
    lora: str | None  # the adapter's public name, if it has one


def _namespace(tracked: Tracked, names: KvEventLoraNames, dynamo: bool) -> _Namespace:
    extra_key, salt = tracked.extra_key, tracked.salt
    root = hashlib.sha256(b"sglang-cache-salt-v1\0" + salt.encode()).digest() if salt is not None else b""
    if dynamo:
        seed = kv_event_namespace_seed(extra_key=extra_key, cache_salt=salt)
        return _Namespace(root, seed, salt, names.resolve(extra_key))
    lora = names.get(extra_key)
    seed = kv_event_namespace_seed(extra_key=extra_key if lora is not None else None, cache_salt=None)
    return _Namespace(root, seed, salt, lora)


class _Told(NamedTuple):
    """A request with its tokens, as placements.Prompt. A chunk's `extra` is the whole hash of its last page, with which the next one's begins."""

    events: "KvEvents"
    tracked: Tracked
    tokens: array
    namespace: _Namespace

    def keys(self, first: int, until: int) -> bytes:
        return self.tracked.prompt.keys(first, until)

    def chunk(self, number: int, age: int, before: PlacedChunk | None) -> PlacedChunk | None:
        """None where the one before it isn't known: routers couldn't place it."""
        size, page = self.events.chunk_tokens, self.events.page_tokens
        if (number > 0 and before is None) or (number + 1) * size > len(self.tokens):
            return None
        tokens = array("I", self.tokens[number * size : (number + 1) * size])
        last = self.namespace.root if before is None else before.extra
        # As SGLang's own: native code, which it compiles when it is first called.
        hashes = array("q")
        for first in range(0, size, page):
            last = hashlib.sha256(last + tokens[first : first + page].tobytes()).digest()
            number_of_page = int.from_bytes(last[:8], "big", signed=True)
            hashes.append(namespaced_block_hash(number_of_page, namespace_seed=self.namespace.seed))
        return PlacedChunk(
            self.tracked.prompt.keys(number, number + 1),
            before.hashes[-1] if before is not None else None,
            hashes,
            tokens,
            of=(self.namespace.salt, self.namespace.lora),
            extra=last,
            age=age,
        )


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
        self._lora_names = lora_names
        self._dynamo = dynamo
        self._placements = Placements(_Terms(page_tokens), group=0)
        self._to_take: list = []

    @property
    def age(self) -> int:
        """Of what this engine stores and finds: grows when all of that is forgotten."""
        return self._placements.age

    def _told(self, tracked: Tracked, tokens: array) -> _Told:
        return _Told(self, tracked, tokens, _namespace(tracked, self._lora_names, self._dynamo))

    def found(self, tracked: Tracked, tokens: array, chunks: int) -> None:
        """A lookup has found the first `chunks` of a request's prompt."""
        if chunks:
            self._placements.found(self._told(tracked, tokens), chunks)

    def stored(self, tracked: Tracked, tokens: array, first: int, until: int, age: int) -> None:
        """kvistd has taken in the request's chunks [first, until), of a store that was begun at this `age`."""
        self._placements.stored(self._told(tracked, tokens), first, until, age)

    def forget_all(self, client: Client) -> None:
        """Nothing that was stored or found will be found by this engine again."""
        self._placements.forget_all(client)

    def progress(self, client: Client, watch: HangWatch) -> None:
        """Once a step."""
        self._to_take += self._placements.take(client, watch)

    def take(self) -> list:
        """What has changed."""
        events, self._to_take = self._to_take, []
        return events
