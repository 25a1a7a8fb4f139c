"""KV events: where kvistd has what this engine knows of, in vLLM's own terms, for routers that listen to its publisher.

A chunk is known from the moment when this engine has stored it, or found it by a lookup. From then on kvistd is asked where it is, again and
again, and what differs from the last answer is told: BlockRemoved for where it was, BlockStored for where it is now. So nothing is missed,
whoever moved, evicted or cleared it, and what kvistd brings back after a restart is told anew.

A chunk has one place at a time, the fastest of those that it has: medium CPU (kvistd's DRAM), STORAGE LOCAL (its SSD), STORAGE REMOTE (a store
beyond the node). Of models with several cache groups it is the first one that is asked for. Events tell all that a consumer without
memory needs: token ids, vLLM's own hashes, the parent.

Threads: the scheduler's. Its steps wait for nothing here: questions are asked in one and answered in a later one.
"""

import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence

from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved, BlockStored, KVCacheEvent
from vllm.logger import init_logger
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
from kvist.vllm.prompt import Prompt

logger = init_logger(__name__)

_KEY = 32
# Each chunk is asked for so often: as long as a router believes what isn't so any more.
_ROUND_S = 1.0
# Questions of 192 chunks each: with steps of 10 ms that is a round of a million tokens in chunks of 256 in 0.1 s. One costs a step about 5 us
# while nothing has changed.
_UNDER_WAY = 4
# As many new ones are told of in one step, at most four times: their tokens make events long.
_NEW_AT_ONCE = 32
# Of a step, to hear answers: one more is begun before it is over.
_HEAR_S = 50e-6
# Of a step, for what lookups have found; the oldest of more waiting prompts become known when they are found again.
_FOUND_S = 50e-6
_FOUND_WAITING = 256
# Known at most, those longest known go first: 16 million tokens in chunks of 256, of which each takes about 2 KiB.
_CHUNKS = 1 << 16

Place = tuple[str, str]  # medium, locality


def _place(tiers: int) -> Place | None:
    if tiers & kvist.Tier.IN_DRAM:
        return MEDIUM_CPU, "LOCAL"
    if tiers & kvist.Tier.ON_SSD:
        return MEDIUM_STORAGE, "LOCAL"
    return (MEDIUM_STORAGE, "REMOTE") if tiers & kvist.Tier.IN_REMOTE else None


_PLACES = [_place(tiers) for tiers in range(8)]
_NOWHERE = 0


class EventChunk:
    """What events tell of a chunk. parent: the hash of the block before its first, None for a prompt's first."""

    __slots__ = ("extra_keys", "hashes", "key", "lora", "parent", "tokens")

    def __init__(
        self,
        key: bytes,
        parent: ExternalBlockHash | None,
        hashes: list[ExternalBlockHash],
        tokens: array,
        lora: tuple[int, str] | None,
        extra_keys: list[tuple | None] | None,
    ) -> None:
        self.key = key
        self.parent = parent
        self.hashes = hashes
        self.tokens = tokens
        self.lora = lora
        self.extra_keys = extra_keys


class _Batch:
    """Chunks that are asked for at once, and the last answer."""

    __slots__ = ("asked_at", "chunks", "keys", "tiers")

    def __init__(self, chunks: list[EventChunk], tiers: bytes, asked_at: float = 0.0) -> None:
        self.chunks = chunks
        self.tiers = tiers
        self.keys = b"".join(chunk.key for chunk in chunks)
        self.asked_at = asked_at

    def without_gone(self) -> "_Batch":
        there = [chunk for chunk, place in zip(self.chunks, self.tiers, strict=True) if place]
        return _Batch(there, bytes(place for place in self.tiers if place), self.asked_at)


class KvEvents:
    def __init__(self, hash_tokens: int, chunk_tokens: int) -> None:
        """hash_tokens: of one of vLLM's block hashes; they divide a chunk's."""
        self._hash_tokens = hash_tokens
        self._chunk_tokens = chunk_tokens
        # vLLM's own conversion reads its environment each time: 1 us.
        is_int = isinstance(maybe_convert_block_hash(BlockHash(bytes(32))), int)
        self._external = _low_64_bits if is_int else _as_it_is
        self._known: set[bytes] = set()
        self._found: deque[tuple[Request, Prompt, int, int]] = deque(maxlen=_FOUND_WAITING)
        self._new: deque[EventChunk] = deque()
        self._round: deque[_Batch] = deque()  # the one that was asked for longest ago first
        self._under_way: deque[tuple[int, _Batch]] = deque()
        self._asks = True
        self._events: list[KVCacheEvent] = []

    # ---- what becomes known ----

    def chunks_of(self, request: Request, prompt: Prompt, first: int, until: int) -> list[EventChunk]:
        """Of the request's chunks [first, until), those that aren't known, as far as vLLM has hashed them."""
        per_chunk = self._chunk_tokens // self._hash_tokens
        hashes = request.block_hashes
        until = min(until, len(hashes) // per_chunk)
        if until <= first:
            return []
        keys = prompt.keys(first, until)
        adapter = request.lora_request
        lora = (adapter.adapter_id, adapter.name) if adapter is not None else None
        plain = lora is None and not request.mm_features and not request.cache_salt
        chunks = []
        for number in range(first, until):
            key = keys[(number - first) * _KEY : (number - first + 1) * _KEY]
            if key in self._known:
                continue
            begin, end = number * per_chunk, (number + 1) * per_chunk
            chunks.append(
                EventChunk(
                    key,
                    self._external(hashes[begin - 1]) if begin else None,
                    list(map(self._external, hashes[begin:end])),
                    array("I", request.all_token_ids[number * self._chunk_tokens : (number + 1) * self._chunk_tokens]),
                    lora,
                    None if plain else list(self._extra_keys(request, begin, end)),
                )
            )
        return chunks

    def _extra_keys(self, request: Request, begin: int, end: int) -> Iterator[tuple | None]:
        image = 0
        for block in range(begin, end):
            first = block * self._hash_tokens
            keys, image = generate_block_hash_extra_keys(request, first, first + self._hash_tokens, image)
            yield keys

    def stored(self, chunks: Sequence[EventChunk]) -> None:
        """kvistd has taken them in."""
        for chunk in chunks:
            if chunk.key not in self._known:
                self._known.add(chunk.key)
                self._new.append(chunk)

    def found(self, request: Request, prompt: Prompt, chunks: int) -> None:
        """A lookup has found the request's first `chunks`."""
        if chunks:
            self._found.append((request, prompt, 0, chunks))

    def forget_all(self, client: kvist.Client) -> None:
        """Nothing that is known is of use to this engine any more."""
        for op, batch in self._under_way:
            client.cancel(op)
            self._drop(batch)
        for batch in self._round:
            self._drop(batch)
        self._known.clear()
        self._found.clear()
        self._new.clear()
        self._round.clear()
        self._under_way.clear()

    # ---- a step ----

    def take(self, client: kvist.Client, watch: HangWatch) -> list[KVCacheEvent]:
        """What has changed. Once a step."""
        if self._asks:
            self._take_in_found()
            until = time.perf_counter() + _HEAR_S
            while self._under_way and self._hear(client) and time.perf_counter() < until:
                pass
            if not watch.hangs():
                while len(self._under_way) < _UNDER_WAY and self._ask(client):
                    pass
        events, self._events = self._events, []
        return events

    def _take_in_found(self) -> None:
        until = time.perf_counter() + _FOUND_S
        while self._found:
            request, prompt, first, last = self._found.popleft()
            some = min(last, first + 8)
            self.stored(self.chunks_of(request, prompt, first, some))
            if some < last:
                self._found.appendleft((request, prompt, some, last))
            if time.perf_counter() > until:
                return

    def _ask(self, client: kvist.Client) -> bool:
        """Whether there was something to ask, and kvistd can be asked more."""
        now = time.monotonic()
        batch = self._next(now)
        if batch is None:
            return False
        batch.asked_at = now
        try:
            self._under_way.append((client.where_start(batch.keys), batch))
        except kvist.KvistError as error:
            return self._failed(client, batch, error)
        return True

    def _next(self, now: float) -> _Batch | None:
        if self._new:
            chunks = [self._new.popleft() for _ in range(min(len(self._new), _NEW_AT_ONCE))]
            return _Batch(chunks, bytes(len(chunks)))
        if not self._round or now - self._round[0].asked_at < _ROUND_S:
            return None
        while len(self._known) > _CHUNKS and len(self._round) > 1:
            self._drop(self._round.popleft())
        batch = self._round.popleft()
        while self._round and len(batch.chunks) + len(self._round[0].chunks) <= kvist.WHERE_KEYS_MAX:
            other = self._round.popleft()  # what is small grows together
            batch = _Batch(batch.chunks + other.chunks, batch.tiers + other.tiers)
        return batch

    def _hear(self, client: kvist.Client) -> bool:
        """Whether the first question under way has been answered."""
        op, batch = self._under_way[0]
        try:
            tiers = client.where_result(op, len(batch.chunks))
        except kvist.KvistError as error:
            self._under_way.popleft()
            return self._failed(client, batch, error)
        if tiers is None:
            return False
        self._under_way.popleft()
        if tiers != batch.tiers:
            self._tell(batch, tiers)
            batch.tiers = tiers
        if _NOWHERE in tiers:
            gone = [chunk.key for chunk, place in zip(batch.chunks, tiers, strict=True) if not place]
            self._known.difference_update(gone)
            batch = batch.without_gone()
        if batch.chunks:
            self._round.append(batch)
        return True

    def _failed(self, client: kvist.Client, batch: _Batch, error: kvist.KvistError) -> bool:
        if error.status == kvist.Status.UNAVAILABLE:  # nothing is there now; what is there when it is back is told again
            nowhere = bytes(len(batch.chunks))
            self._tell(batch, nowhere)
            batch.tiers = nowhere
            batch.asked_at = time.monotonic()
        elif error.status == kvist.Status.INVALID_ARGUMENT:
            self._asks = False
            self.forget_all(client)
            self._drop(batch)
            logger.error("kvist tells no more KV events: this kvistd can't say where chunks are (%s); install its version", error)
            return False
        self._round.append(batch)
        return False

    # ---- what is told ----

    def _tell(self, batch: _Batch, tiers: bytes) -> None:
        """What differs from the last answer."""
        gone: dict[Place, list[EventChunk]] = {}
        came: list[tuple[Place, list[EventChunk]]] = []  # runs
        for chunk, was, now in zip(batch.chunks, batch.tiers, tiers, strict=True):
            before, place = _PLACES[was], _PLACES[now]
            if before == place:
                continue
            if before is not None:
                gone.setdefault(before, []).append(chunk)
            if place is not None:
                if came and came[-1][0] == place and _follows(chunk, came[-1][1][-1]):
                    came[-1][1].append(chunk)
                else:
                    came.append((place, [chunk]))
        # In this order: who knows one place of a block only must end with where it is.
        for (medium, locality), chunks in gone.items():
            hashes = [block for chunk in chunks for block in chunk.hashes]
            self._events.append(BlockRemoved(block_hashes=hashes, medium=medium, locality=locality))
        for place, chunks in came:
            self._events.append(self._came(place, chunks))

    def _came(self, place: Place, run: list[EventChunk]) -> BlockStored:
        first = run[0]
        adapter_id, adapter = first.lora or (None, None)
        extra_keys = None
        if first.extra_keys is not None:
            extra_keys = to_event_extra_keys([keys for chunk in run for keys in chunk.extra_keys or ()])
        tokens: list[int] = []
        for chunk in run:
            tokens.extend(chunk.tokens)
        return BlockStored(
            block_hashes=[block for chunk in run for block in chunk.hashes],
            parent_block_hash=first.parent,
            token_ids=tokens,
            block_size=self._hash_tokens,
            lora_id=adapter_id,
            medium=place[0],
            lora_name=adapter,
            extra_keys=extra_keys,
            locality=place[1],
        )

    def _drop(self, batch: _Batch) -> None:
        self._tell(batch, bytes(len(batch.chunks)))
        self._known.difference_update(chunk.key for chunk in batch.chunks)


def _low_64_bits(block: BlockHash) -> int:
    return int.from_bytes(block[-8:], "big")


def _as_it_is(block: BlockHash) -> bytes:
    return block


def _follows(chunk: EventChunk, before: EventChunk) -> bool:
    same = chunk.lora == before.lora and (chunk.extra_keys is None) == (before.extra_keys is None)
    return same and chunk.parent == before.hashes[-1]
