"""Where kvistd has the chunks that an engine knows of, followed for routers that listen to the engine's KV events.

A chunk is known from the moment when this engine has stored it, or found it by a lookup. From then on kvistd is asked where it is, again and
again, and what differs from the last answer is told: that it isn't where it was, and where it is now. So nothing is missed, whoever moved, evicted
or cleared it. One that is nowhere stays known for a minute, for it may be on its way: stored anew, by another engine, or read by a kvistd that has
just started.

A chunk has one place at a time, the fastest tier of those that have it. It is told when what comes before it is: routers build trees.

Threads: the scheduler's. Its steps wait for nothing here: questions are asked in one and answered in a later one.
"""

import enum
import logging
import time
from array import array
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol

from kvist.client import WHERE_KEYS_MAX, Client, Tier
from kvist.hangs import HangWatch
from kvist.status import KvistError, Status

logger = logging.getLogger(__name__)

KEY_BYTES = 32
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

_NOWHERE = Tier(0)
_FASTEST = [
    next((tier for tier in (Tier.IN_DRAM, Tier.ON_SSD, Tier.IN_REMOTE) if tiers & tier), _NOWHERE) for tiers in range(8)
]


class PlacedChunk:
    """What events tell of a chunk, and what was told.

    parent   the hash of the engine's block before its first, None for a prompt's first
    hashes   of its blocks
    of       chunks of one event have the same
    extra    the engine's
    tier     where it was told to be
    since    when it was first found to be nowhere, 0 while it is somewhere
    age      of what this engine stores and finds: see Placements.forget_all
    leaves   it makes room for others
    """

    __slots__ = ("age", "extra", "hashes", "key", "leaves", "of", "parent", "since", "tier", "tokens")

    def __init__(
        self, key: bytes, parent: Hashable | None, hashes: list, tokens: array, of: Hashable, extra: Any, age: int
    ) -> None:
        self.key = key
        self.parent = parent
        self.hashes = hashes
        self.tokens = tokens
        self.of = of
        self.extra = extra
        self.age = age
        self.tier = _NOWHERE
        self.since = 0.0
        self.leaves = False

    def follows(self, before: "PlacedChunk") -> bool:
        """In one event."""
        return self.tier == before.tier and self.of == before.of and self.parent == before.hashes[-1]


class Prompt(Protocol):
    """A prompt of the engine's."""

    def keys(self, first: int, until: int) -> bytes:
        """Of its chunks [first, until)."""

    def chunks(self, first: int, until: int, age: int) -> list[PlacedChunk]:
        """Its chunks [first, until), as far as the engine can say now what events tell of them."""


class Terms(Protocol):
    """Events in the engine's terms."""

    def removed(self, tier: Tier, hashes: list) -> Any: ...

    def stored(self, run: list[PlacedChunk]) -> Any:
        """Of chunks that follow each other: at least one."""


class _Batch:
    """Chunks that are asked for together. tiers: the last answer, of which all was told; b"" where some wasn't. again: as soon as may be, for
    there was too much to tell. left: Placements._left then."""

    __slots__ = ("again", "asked_at", "chunks", "keys", "left", "tiers")

    def __init__(self, chunks: list[PlacedChunk]) -> None:
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


class Placements:
    def __init__(self, terms: Terms, group: int) -> None:
        """group: kvist's, whose chunks are asked for."""
        self._terms = terms
        self._group = group
        self.age = 0  # grows with each `forget_all`
        self._known: dict[bytes, PlacedChunk] = {}  # each is new, or in one batch
        self._recent: dict[bytes, None] = {}  # those that don't leave, what was stored or found longest ago first
        self._left = 0  # how many have been told to leave
        self._told: set[Hashable] = set()  # last blocks of chunks that have a place
        self._found: deque[tuple[Prompt, int, int]] = deque()
        self._new: deque[PlacedChunk] = deque()
        self._round: deque[_Batch] = deque()  # the one that was asked for longest ago first
        self._under_way: deque[tuple[int, _Batch]] = deque()
        self._asks_from = 0.0
        self._step = 0
        self._events: list[Any] = []

    # ---- what becomes known ----

    @property
    def asks(self) -> bool:
        """False: kvistd doesn't know the question."""
        return time.monotonic() >= self._asks_from

    def stored(self, prompt: Prompt, first: int, until: int, age: int) -> None:
        """kvistd has taken in the prompt's chunks [first, until), of a store that was begun at this `age`."""
        if age == self.age and self.asks:
            self._found.append((prompt, first, until))

    def found(self, prompt: Prompt, chunks: int) -> None:
        """A lookup has found the prompt's first `chunks`."""
        if chunks and len(self._found) < _FOUND_WAITING and self.asks:
            self._found.append((prompt, 0, chunks))

    def add(self, chunks: Iterable[PlacedChunk]) -> None:
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

    def _touch(self, key: bytes) -> bool:
        """Whether it is known, and then one that was used just now."""
        chunk = self._known.get(key)
        if chunk is None:
            return False
        chunk.leaves = False
        self._recent.pop(key, None)
        self._recent[key] = None
        return True

    def _take_in_found(self, client: Client, watch: HangWatch, until: float) -> None:
        while self._found:
            prompt, first, last = self._found.popleft()
            some = min(last, first + _FOUND_AT_ONCE)
            keys = prompt.keys(first, some)
            for number in range(first, some):
                at = (number - first) * KEY_BYTES
                if not self._touch(keys[at : at + KEY_BYTES]):
                    self.add(prompt.chunks(number, number + 1, self.age))
            if some < last:
                self._found.appendleft((prompt, some, last))
            if time.perf_counter() > until:
                return

    # ---- what isn't any more ----

    def forget_all(self, client: Client) -> None:
        """Nothing that is known, or on its way to be, will be found by this engine again."""
        self.age += 1
        for op, _ in self._under_way:
            client.cancel(op)
        self._tell([(chunk, _NOWHERE) for batch in self._batches() for chunk in batch.chunks])
        for kept in (self._known, self._recent, self._told, self._found, self._new, self._round, self._under_way):
            kept.clear()

    def tell_again(self) -> None:
        """The engine has told that all blocks are cleared, which means kvistd's, too, to who listens."""
        self._told.clear()
        for batch in self._batches():
            batch.tiers = b""
            batch.asked_at = 0.0
            for chunk in batch.chunks:
                chunk.tier = _NOWHERE

    def _batches(self) -> list[_Batch]:
        return [batch for _, batch in self._under_way] + list(self._round)

    # ---- a step ----

    def take(self, client: Client, watch: HangWatch) -> list[Any]:
        """Events of what has changed. Once a step."""
        until = time.perf_counter() + _STEP_S
        self._step += 1
        for turn in range(3):
            (self._take_in_found, self._hear_all, self._ask_all)[(self._step + turn) % 3](client, watch, until)
            if time.perf_counter() > until:
                break
        events, self._events = self._events, []
        return events

    def _ask_all(self, client: Client, watch: HangWatch, until: float) -> None:
        now = time.monotonic()
        if watch.hangs() or now < self._asks_from:
            return
        while len(self._under_way) < _UNDER_WAY and self._ask(client, now) and time.perf_counter() < until:
            pass

    def _ask(self, client: Client, now: float) -> bool:
        """Whether there was something to ask, and kvistd can be asked more."""
        batch = self._next(now)
        if batch is None:
            return False
        batch.asked_at = now
        try:
            self._under_way.append((client.where_start(batch.keys, group=self._group), batch))
        except KvistError as error:
            self._failed(client, batch, error)
            return False
        return True

    def _next(self, now: float) -> _Batch | None:
        is_due = bool(self._round) and now - self._round[0].asked_at >= _ROUND_S
        # One of the questions is always the round's.
        if self._new and (not is_due or len(self._under_way) < _UNDER_WAY - 1):
            most = _NEW_AT_ONCE if len(self._new) <= 4 * _NEW_AT_ONCE else WHERE_KEYS_MAX
            return _Batch([self._new.popleft() for _ in range(min(len(self._new), most))])
        if not is_due:
            return None
        batch = self._round.popleft()
        chunks = batch.chunks
        while self._round and len(chunks) + len(self._round[0].chunks) <= WHERE_KEYS_MAX:
            chunks = chunks + self._round.popleft().chunks  # what is small grows together
        return batch if chunks is batch.chunks else _Batch(chunks)

    def _hear_all(self, client: Client, watch: HangWatch, until: float) -> None:
        while self._under_way and self._hear(client) and time.perf_counter() < until:
            pass

    def _hear(self, client: Client) -> bool:
        """Whether the first question under way has been answered."""
        op, batch = self._under_way[0]
        try:
            tiers = client.where_result(op, len(batch.chunks))
        except KvistError as error:
            self._under_way.popleft()
            self._failed(client, batch, error)
            return True
        if tiers is None:
            return False
        self._under_way.popleft()
        if tiers != batch.tiers:
            told = self._tell([(chunk, _FASTEST[there]) for chunk, there in zip(batch.chunks, tiers, strict=True)])
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
            for chunk, there in zip(batch.chunks, tiers, strict=True):
                chunk.since = 0.0 if there else chunk.since or now
                over = chunk.leaves or (chunk.since and now - chunk.since > _NOWHERE_S)
                (go if over else stay).append(chunk)
            if go:
                self._tell([(chunk, _NOWHERE) for chunk in go])
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

    def _failed(self, client: Client, batch: _Batch, error: KvistError) -> None:
        self._round.append(batch)
        if error.status == Status.UNAVAILABLE:  # nothing is there now; what is there when it is back is told again
            self._tell([(chunk, _NOWHERE) for chunk in batch.chunks])
            batch.tiers = b""
        elif error.status == Status.INVALID_ARGUMENT:
            self.forget_all(client)
            if not self._asks_from:  # once
                logger.warning(
                    "kvist tells no KV events: this kvistd can't say where chunks are (%s); install the connector's version of it",
                    error.message,
                )
            self._asks_from = time.monotonic() + _PAUSE_S

    # ---- what is told ----

    def _tell(self, found: Sequence[tuple[PlacedChunk, Tier]]) -> _Told:
        """What differs from what was told."""
        gone: dict[Tier, list] = {}
        came: list[list[PlacedChunk]] = []  # runs
        told = _Told.ALL
        left = _CAME_AT_ONCE
        for chunk, tier in found:
            if chunk.tier == tier:
                continue
            if tier and left == 0:
                told = _Told.MUCH_IS_LEFT
                continue
            if tier and chunk.parent is not None and chunk.parent not in self._told:
                told = max(told, _Told.SOME_WAITS)
                tier = _NOWHERE
            if chunk.tier:
                gone.setdefault(chunk.tier, []).extend(chunk.hashes)
            chunk.tier = tier
            if not tier:
                self._told.discard(chunk.hashes[-1])
                continue
            left -= 1
            self._told.add(chunk.hashes[-1])
            if came and chunk.follows(came[-1][-1]):
                came[-1].append(chunk)
            else:
                came.append([chunk])
        # In this order: who knows one place of a block only must end with where it is.
        self._events += [self._terms.removed(tier, hashes) for tier, hashes in gone.items()]
        self._events += map(self._terms.stored, came)
        return told
