"""KV events: where kvistd has what this engine knows of, in vLLM's own terms, for routers that listen to its publisher.

A chunk is known from the moment when this engine has stored it, or found it by a lookup. From then on kvistd is asked where it is, again and
again, and what differs from the last answer is told: BlockRemoved for where it was, BlockStored for where it is now. So nothing is missed,
whoever moved, evicted or cleared it. One that is nowhere stays known for a minute, for it may be on its way: stored anew, by another engine, or
read by a kvistd that has just started.

A chunk has one place at a time, the fastest of those that it has: medium CPU (kvistd's DRAM), STORAGE LOCAL (its SSD), STORAGE REMOTE (a store
beyond the node, as far as kvistd's index has it). It is told when what comes before it is: routers build trees. Events are of one cache group, the first
that needs whole prefixes, with its blocks, hashes and number as vLLM's own events have them, and tell all that a consumer without memory needs.

Threads: the scheduler's. Its steps wait for nothing here: questions are asked in one and answered in a later one.
"""

import enum
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence

from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved, BlockStored, KVCacheEvent
from vllm.logger import init_logger
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
from kvist.vllm.groups import Tables
from kvist.vllm.prompt import Prompt

logger = init_logger(__name__)

_KEY = 32
# Each chunk is asked for so often: as long as a router believes what isn't so any more.
_ROUND_S = 1.0
# How long a chunk that is nowhere stays known.
_NOWHERE_S = 60.0
# Questions of 192 chunks each: with steps of 10 ms that is a round of a million tokens in chunks of 256 in 0.1 s. One costs a step about 5 us
# while nothing has changed.
_UNDER_WAY = 4
# New ones that are asked for at once; more when more wait than that.
_NEW_AT_ONCE = 32
# Of an answer so many chunks are told of that have come, the rest when it is asked for again, in the next step: a chunk of 256 tokens takes a step
# 5 to 10 us. With steps of 10 ms that is 100,000 tokens a second.
_CAME_AT_ONCE = 4
# Of a step: one thing more is begun before it is over. What has no time for itself is first in a later one.
_STEP_S = 30e-6
_FOUND_AT_ONCE = 2  # chunks that become known, in one go
# Of more waiting prompts the chunks become known when they are found again.
_FOUND_WAITING = 256
# Known at most, those go first that were stored or found longest ago: 16 million tokens in chunks of 256, of which each takes about 2 KiB.
_CHUNKS = 1 << 16
# After a kvistd that doesn't know the question: perhaps it is another one by then.
_PAUSE_S = 60.0

Place = tuple[str, str]  # medium, locality


def _place(tiers: int) -> Place | None:
    if tiers & kvist.Tier.IN_DRAM:
        return MEDIUM_CPU, "LOCAL"
    if tiers & kvist.Tier.ON_SSD:
        return MEDIUM_STORAGE, "LOCAL"
    return (MEDIUM_STORAGE, "REMOTE") if tiers & kvist.Tier.IN_REMOTE else None


_PLACES = [_place(tiers) for tiers in range(8)]


class EventChunk:
    """What events tell of a chunk, and what was told.

    parent   the hash of the block before its first, None for a prompt's first
    place    where it was told to be; None: nowhere
    since    when it was first found to be nowhere, 0 while it is somewhere
    age      of what this engine stores and finds: see KvEvents.forget_all
    leaves   it makes room for others
    """

    __slots__ = ("age", "extra_keys", "hashes", "key", "leaves", "lora", "parent", "place", "since", "tokens")

    def __init__(
        self,
        key: bytes,
        parent: ExternalBlockHash | None,
        hashes: list[ExternalBlockHash],
        tokens: array,
        lora: tuple[int, str] | None,
        extra_keys: list[tuple | None] | None,
        age: int,
    ) -> None:
        self.key = key
        self.parent = parent
        self.hashes = hashes
        self.tokens = tokens
        self.lora = lora
        self.extra_keys = extra_keys
        self.age = age
        self.place: Place | None = None
        self.since = 0.0
        self.leaves = False


class _Batch:
    """Chunks that are asked for together. tiers: the last answer, of which all was told; b"" where some wasn't. again: as soon as may be, for
    there was too much to tell. left: KvEvents._left then."""

    __slots__ = ("again", "asked_at", "chunks", "keys", "left", "tiers")

    def __init__(self, chunks: list[EventChunk]) -> None:
        self.chunks = chunks
        self.tiers = b""
        self.again = False
        self.keys = b"".join(chunk.key for chunk in chunks)
        self.asked_at = 0.0
        self.left = -1


class _Told(enum.IntEnum):
    """Of an answer. SOME_WAITS: for what comes before it."""

    ALL = 0
    SOME_WAITS = 1
    MUCH_IS_LEFT = 2


class KvEvents:
    def __init__(self, pool: BlockPool, tables: Tables) -> None:
        self._pool = pool
        self._prefix_cache = pool.cached_block_hash_to_block  # another object after each reset
        self._group = tables.first_full
        self._table, self._per_chunk = list(tables)[self._group]
        self._block_tokens = tables.block_tokens[self._group]
        self._scale = self._block_tokens // pool.hash_block_size
        self._chunk_tokens = tables.chunk_tokens
        # vLLM's own conversion reads its environment each time: 1 us.
        is_int = isinstance(maybe_convert_block_hash(BlockHash(bytes(32))), int)
        self._external = _low_64_bits if is_int else _as_it_is
        self.age = 0  # grows with each `forget_all`
        self._known: dict[bytes, EventChunk] = {}  # each is new, or in one batch
        self._recent: dict[bytes, None] = {}  # those that don't leave, what was stored or found longest ago first
        self._left = 0  # how many have been told to leave
        self._told: set[ExternalBlockHash] = set()  # last blocks of chunks that have a place
        self._found: deque[tuple[Request, Prompt, int, int]] = deque()
        self._new: deque[EventChunk] = deque()
        self._round: deque[_Batch] = deque()  # the one that was asked for longest ago first
        self._under_way: deque[tuple[int, _Batch]] = deque()
        self._asks_from = 0.0
        self._step = 0
        self._events: list[KVCacheEvent] = []

    # ---- what becomes known ----

    def chunks_of(self, request: Request, prompt: Prompt, first: int, until: int) -> list[EventChunk]:
        """Of the request's chunks [first, until), as far as vLLM has hashed them."""
        hashes = request.block_hashes
        until = min(until, len(hashes) // (self._per_chunk * self._scale))
        if until <= first or time.monotonic() < self._asks_from:
            return []
        keys = prompt.keys(first, until)
        adapter = request.lora_request
        lora = (adapter.adapter_id, adapter.name) if adapter is not None else None
        plain = lora is None and not request.mm_features and not request.cache_salt
        external, scale = self._external, self._scale
        chunks = []
        for number in range(first, until):
            begin, end = number * self._per_chunk, (number + 1) * self._per_chunk
            chunks.append(
                EventChunk(
                    keys[(number - first) * _KEY : (number - first + 1) * _KEY],
                    external(hashes[begin * scale - 1]) if begin else None,
                    [external(hashes[block * scale + scale - 1]) for block in range(begin, end)],
                    array("I", request.all_token_ids[number * self._chunk_tokens : (number + 1) * self._chunk_tokens]),
                    lora,
                    None if plain else list(self._extra_keys(request, begin, end)),
                    self.age,
                )
            )
        return chunks

    def _extra_keys(self, request: Request, begin: int, end: int) -> Iterator[tuple | None]:
        image = 0
        for block in range(begin, end):
            first = block * self._block_tokens
            keys, image = generate_block_hash_extra_keys(request, first, first + self._block_tokens, image)
            yield keys

    def stored(self, request: Request, prompt: Prompt, first: int, until: int, age: int) -> None:
        """kvistd has taken in the request's chunks [first, until), of a store that was begun at this `age`."""
        if age == self.age and time.monotonic() >= self._asks_from:
            self._found.append((request, prompt, first, until))

    def stored_chunks(self, chunks: Sequence[EventChunk]) -> None:
        """kvistd has taken them in."""
        for chunk in chunks:
            if chunk.age != self.age or self._touch(chunk.key):
                continue
            self._known[chunk.key] = chunk
            self._recent[chunk.key] = None
            self._new.append(chunk)
            if len(self._recent) > _CHUNKS:
                oldest = next(iter(self._recent))
                del self._recent[oldest]
                self._known[oldest].leaves = True
                self._left += 1

    def found(self, request: Request, prompt: Prompt, chunks: int) -> None:
        """A lookup has found the request's first `chunks`."""
        if chunks and len(self._found) < _FOUND_WAITING and time.monotonic() >= self._asks_from:
            self._found.append((request, prompt, 0, chunks))

    def _touch(self, key: bytes) -> bool:
        """Whether it is known, and then one that was used just now."""
        chunk = self._known.get(key)
        if chunk is None:
            return False
        chunk.leaves = False
        self._recent.pop(key, None)
        self._recent[key] = None
        return True

    def _take_in_found(self, client: kvist.Client, watch: HangWatch, until: float) -> None:
        while self._found:
            request, prompt, first, last = self._found.popleft()
            some = min(last, first + _FOUND_AT_ONCE)
            keys = prompt.keys(first, some)
            for number in range(first, some):
                at = (number - first) * _KEY
                if not self._touch(keys[at : at + _KEY]):
                    self.stored_chunks(self.chunks_of(request, prompt, number, number + 1))
            if some < last:
                self._found.appendleft((request, prompt, some, last))
            if time.perf_counter() > until:
                return

    # ---- what isn't any more ----

    def forget_all(self, client: kvist.Client) -> None:
        """Nothing that is known, or on its way to be, will be found by this engine again."""
        self.age += 1
        for op, _ in self._under_way:
            client.cancel(op)
        batches = [batch for _, batch in self._under_way] + list(self._round)
        self._tell([(chunk, None) for batch in batches for chunk in batch.chunks])
        for kept in (self._known, self._recent, self._told, self._found, self._new, self._round, self._under_way):
            kept.clear()

    def _tell_again(self) -> None:
        """vLLM has told that all blocks are cleared, which means kvistd's, too, to who listens."""
        self._prefix_cache = self._pool.cached_block_hash_to_block
        self._told.clear()
        for batch in [batch for _, batch in self._under_way] + list(self._round):
            batch.tiers = b""
            batch.asked_at = 0.0
            for chunk in batch.chunks:
                chunk.place = None

    # ---- a step ----

    def take(self, client: kvist.Client, watch: HangWatch) -> list[KVCacheEvent]:
        """What has changed. Once a step."""
        began = time.perf_counter()
        if self._prefix_cache is not self._pool.cached_block_hash_to_block:
            self._tell_again()
        until = began + _STEP_S
        self._step += 1
        for turn in range(3):
            (self._take_in_found, self._hear_all, self._ask_all)[(self._step + turn) % 3](client, watch, until)
            if time.perf_counter() > until:
                break
        events, self._events = self._events, []
        return events

    def _ask_all(self, client: kvist.Client, watch: HangWatch, until: float) -> None:
        now = time.monotonic()
        if watch.hangs() or now < self._asks_from:
            return
        while len(self._under_way) < _UNDER_WAY and self._ask(client, now) and time.perf_counter() < until:
            pass

    def _ask(self, client: kvist.Client, now: float) -> bool:
        """Whether there was something to ask, and kvistd can be asked more."""
        batch = self._next(now)
        if batch is None:
            return False
        batch.asked_at = now
        try:
            self._under_way.append((client.where_start(batch.keys, group=self._group), batch))
        except kvist.KvistError as error:
            self._failed(client, batch, error)
            return False
        return True

    def _next(self, now: float) -> _Batch | None:
        is_due = bool(self._round) and now - self._round[0].asked_at >= _ROUND_S
        # One of the questions is always the round's.
        if self._new and (not is_due or len(self._under_way) < _UNDER_WAY - 1):
            most = _NEW_AT_ONCE if len(self._new) <= 4 * _NEW_AT_ONCE else kvist.WHERE_KEYS_MAX
            return _Batch([self._new.popleft() for _ in range(min(len(self._new), most))])
        if not is_due:
            return None
        batch = self._round.popleft()
        chunks = batch.chunks
        while self._round and len(chunks) + len(self._round[0].chunks) <= kvist.WHERE_KEYS_MAX:
            chunks = chunks + self._round.popleft().chunks  # what is small grows together
        return batch if chunks is batch.chunks else _Batch(chunks)

    def _hear_all(self, client: kvist.Client, watch: HangWatch, until: float) -> None:
        while self._under_way and self._hear(client) and time.perf_counter() < until:
            pass

    def _hear(self, client: kvist.Client) -> bool:
        """Whether the first question under way has been answered."""
        op, batch = self._under_way[0]
        try:
            tiers = client.where_result(op, len(batch.chunks))
        except kvist.KvistError as error:
            self._under_way.popleft()
            self._failed(client, batch, error)
            return True
        if tiers is None:
            return False
        self._under_way.popleft()
        if tiers != batch.tiers:
            told = self._tell([(chunk, _PLACES[place]) for chunk, place in zip(batch.chunks, tiers, strict=True)])
            batch.tiers = tiers if told == _Told.ALL else b""
            batch.again = told == _Told.MUCH_IS_LEFT
        self._keep(batch, tiers)
        return True

    def _keep(self, batch: _Batch, tiers: bytes) -> None:
        """For the next round, without those that have been nowhere for long, or make room for others."""
        if 0 in tiers or batch.left != self._left:
            batch.left = self._left
            now = time.monotonic()
            stay, go = [], []
            for chunk, place in zip(batch.chunks, tiers, strict=True):
                chunk.since = 0.0 if place else chunk.since or now
                over = chunk.leaves or (chunk.since and now - chunk.since > _NOWHERE_S)
                (go if over else stay).append(chunk)
            if go:
                self._tell([(chunk, None) for chunk in go])
                for chunk in go:
                    del self._known[chunk.key]
                    self._recent.pop(chunk.key, None)
                before, batch = batch, _Batch(stay)
                batch.asked_at, batch.again = before.asked_at, before.again
        if batch.again and batch.chunks:
            batch.again, batch.asked_at = False, 0.0
            self._round.appendleft(batch)
        elif batch.chunks:
            self._round.append(batch)

    def _failed(self, client: kvist.Client, batch: _Batch, error: kvist.KvistError) -> None:
        self._round.append(batch)
        if error.status == kvist.Status.UNAVAILABLE:  # nothing is there now; what is there when it is back is told again
            self._tell([(chunk, None) for chunk in batch.chunks])
            batch.tiers = b""
        elif error.status == kvist.Status.INVALID_ARGUMENT:
            self.forget_all(client)
            self._asks_from = time.monotonic() + _PAUSE_S
            logger.warning_once(
                "kvist tells no KV events: this kvistd can't say where chunks are (%s); install the connector's version of it",
                error.message,
            )

    # ---- what is told ----

    def _tell(self, found: list[tuple[EventChunk, Place | None]]) -> _Told:
        """What differs from what was told."""
        gone: dict[Place, list[EventChunk]] = {}
        came: list[list[EventChunk]] = []  # runs
        told = _Told.ALL
        left = _CAME_AT_ONCE
        for chunk, place in found:
            if chunk.place == place:
                continue
            if place is not None and left == 0:
                told = _Told.MUCH_IS_LEFT
                continue
            if place is not None and chunk.parent is not None and chunk.parent not in self._told:
                told = max(told, _Told.SOME_WAITS)
                place = None
            if chunk.place is not None:
                gone.setdefault(chunk.place, []).append(chunk)
            chunk.place = place
            if place is None:
                self._told.discard(chunk.hashes[-1])
                continue
            left -= 1
            self._told.add(chunk.hashes[-1])
            if came and _follows(chunk, came[-1][-1]):
                came[-1].append(chunk)
            else:
                came.append([chunk])
        # In this order: who knows one place of a block only must end with where it is.
        for (medium, locality), chunks in gone.items():
            hashes: list[ExternalBlockHash] = []
            for chunk in chunks:
                hashes.extend(chunk.hashes)
            self._events.append(
                BlockRemoved(block_hashes=hashes, medium=medium, group_idx=self._table, locality=locality)
            )
        self._events += map(self._came, came)
        return told

    def _came(self, run: list[EventChunk]) -> BlockStored:
        first = run[0]
        medium, locality = first.place
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
            block_size=self._block_tokens,
            lora_id=adapter_id,
            medium=medium,
            lora_name=adapter,
            extra_keys=extra_keys,
            group_idx=self._table,
            locality=locality,
        )


def _low_64_bits(block: BlockHash) -> int:
    return int.from_bytes(block[-8:], "big")


def _as_it_is(block: BlockHash) -> bytes:
    return block


def _follows(chunk: EventChunk, before: EventChunk) -> bool:
    same = chunk.place == before.place and chunk.lora == before.lora and (chunk.extra_keys is None) == (before.extra_keys is None)
    return same and chunk.parent == before.hashes[-1]
