"""Where kvistd has the chunks that an engine knows of, followed for routers that listen to the engine's KV events.

A chunk is known from the moment when this engine has stored it, or found it by a lookup. From then on kvistd is asked where it is, again and
again, and what differs from the last answer is told: that it isn't where it was, and where it is now. So nothing is missed, whoever moved, evicted
or cleared it. One that is nowhere stays known for a minute, for it may be on its way: stored anew, by another engine, or read by a kvistd that has
just started.

A chunk has one place at a time, the fastest tier of those that have it. It is told when what comes before it is: routers build trees. Chunks of different
keys may be the same blocks to the engine; those are where any of them is.

Threads: the scheduler's. Its steps wait for nothing here: questions are asked in one and answered in a later one.
"""

import enum
import logging
import time
from array import array
from collections import Counter, deque
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
# Questions of 192 chunks each, which kvistd hears every 20 ms: a round of a million tokens in chunks of 256 takes 0.15 s. One costs a step about
# 5 us while nothing has changed.
_UNDER_WAY = 4
# New ones that are asked for at once; more when more wait than that.
_NEW_AT_ONCE = 32
# What a step gives to this, of the time since the last one, within these bounds: one thing more is begun before it is over. What has no time for itself
# is first in a later one.
_SHARE = 0.002
_STEP_S = (20e-6, 100e-6)
# Of an answer so many chunks are told of that have come for each 20 us of that, the rest when it is asked for again, in the next step: a chunk of
# 256 tokens takes 5 to 10 us. That is 100,000 tokens a second with steps of 10 to 50 ms, and half of that with steps of 100.
_CAME_AT_ONCE = 4
_FOUND_AT_ONCE = 2  # chunks that become known, in one go
# Of more waiting prompts and stores the chunks become known when they are found again.
_FOUND_WAITING = 256
_STORED_WAITING = 4096
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
    hashes   of its blocks; the last tells it from all others, whatever their keys
    of       chunks of one event have the same
    extra    the engine's
    tier     where it was told to be
    since    when it was first found to be nowhere, 0 while it is somewhere
    age      of what this engine stores and finds: see Placements.forget_all
    leaves   it makes room for others
    """

    __slots__ = ("age", "extra", "hashes", "key", "leaves", "of", "parent", "since", "tier", "tokens")

    def __init__(
        self,
        key: bytes,
        parent: Hashable | None,
        hashes: Sequence,
        tokens: array,
        of: Hashable,
        extra: Any,
        age: int,
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

    def chunk(self, number: int, age: int, before: PlacedChunk | None) -> PlacedChunk | None:
        """Its chunk of this number, if the engine can say now what events tell of it. before: the one before it, if that is known."""


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

    def take_in(self, other: "_Batch") -> None:
        """From the next question on. What was told of both is still told."""
        self.tiers = self.tiers + other.tiers if self.tiers and other.tiers else b""
        self.chunks = self.chunks + other.chunks
        self.keys += other.keys
        self.left = min(self.left, other.left)


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
        self._told: Counter[Hashable] = Counter()  # [last block] chunks that have a place
        self._at: Counter[tuple[Hashable, Tier]] = Counter()  # [last block, place] chunks
        self._found: deque[tuple[Prompt, int, int]] = deque()
        self._new: deque[PlacedChunk] = deque()
        self._again: deque[_Batch] = deque()  # of whose answers not all was told yet
        self._round: deque[_Batch] = deque()  # the one that was asked for longest ago first
        self._under_way: deque[tuple[int, _Batch]] = deque()
        self._asks_from = 0.0
        self._step = 0
        self._asked = 0
        self._came_at_once = _CAME_AT_ONCE
        self._took_at = time.perf_counter()
        self._events: list[Any] = []

    # ---- what becomes known ----

    @property
    def asks(self) -> bool:
        """False: kvistd doesn't know the question."""
        return time.monotonic() >= self._asks_from

    def stored(self, prompt: Prompt, first: int, until: int, age: int) -> None:
        """kvistd has taken in the prompt's chunks [first, until), of a store that was begun at this `age`."""
        if age == self.age and len(self._found) < _STORED_WAITING and self.asks:
            self._found.append((prompt, first, until))

    def found(self, prompt: Prompt, chunks: int) -> None:
        """A lookup has found the prompt's first `chunks`."""
        if chunks and len(self._found) < _FOUND_WAITING and self.asks:
            self._found.append((prompt, 0, chunks))

    def add(self, chunks: Iterable[PlacedChunk]) -> None:
        """kvistd has taken them in."""
        for chunk in chunks:
            if chunk.age != self.age or self._touch(chunk.key) is not None:
                continue
            self._known[chunk.key] = chunk
            self._recent[chunk.key] = None
            self._new.append(chunk)
            if len(self._recent) > _CHUNKS:
                oldest = next(iter(self._recent))
                del self._recent[oldest]
                self._known[oldest].leaves = True
                self._left += 1

    def _touch(self, key: bytes) -> PlacedChunk | None:
        """The known one, which was used just now."""
        chunk = self._known.get(key)
        if chunk is not None:
            chunk.leaves = False
            self._recent.pop(key, None)
            self._recent[key] = None
        return chunk

    def _take_in_found(self, client: Client, watch: HangWatch, until: float) -> None:
        while self._found:
            prompt, first, last = self._found.popleft()
            some = min(last, first + _FOUND_AT_ONCE)
            begin = max(first - 1, 0)
            keys = prompt.keys(begin, some)
            before = self._known.get(keys[:KEY_BYTES]) if first else None
            for number in range(first, some):
                at = (number - begin) * KEY_BYTES
                chunk = self._touch(keys[at : at + KEY_BYTES])
                if chunk is None:
                    chunk = prompt.chunk(number, self.age, before)
                    self.add([] if chunk is None else [chunk])
                before = chunk
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
        for kept in (self._known, self._recent, self._found, self._new, self._again, self._round, self._under_way):
            kept.clear()

    def tell_again(self) -> None:
        """The engine has told that all blocks are cleared, which means kvistd's, too, to some who listen. To others it doesn't: what was to be told
        as removed still is."""
        self._told.clear()
        self._at.clear()
        for batch in self._batches():
            batch.tiers = b""
            batch.asked_at = 0.0
            for chunk in batch.chunks:
                chunk.tier = _NOWHERE

    def _batches(self) -> list[_Batch]:
        return [*(batch for _, batch in self._under_way), *self._again, *self._round]

    # ---- a step ----

    def take(self, client: Client, watch: HangWatch) -> list[Any]:
        """Events of what has changed. Once a step."""
        began = time.perf_counter()
        least, most = _STEP_S
        budget = min(max(_SHARE * (began - self._took_at), least), most)
        self._took_at = began
        self._came_at_once = int(_CAME_AT_ONCE * budget / least)
        until = began + budget
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
        """In turn: new ones, those of which more is to be told, the round's."""
        self._asked += 1
        for turn in range(3):
            batch = (self._next_new, self._next_again, self._next_of_round)[(self._asked + turn) % 3](now)
            if batch is not None:
                return batch
        return None

    def _next_new(self, now: float) -> _Batch | None:
        most = _NEW_AT_ONCE if len(self._new) <= 4 * _NEW_AT_ONCE else WHERE_KEYS_MAX
        return _Batch([self._new.popleft() for _ in range(min(len(self._new), most))]) if self._new else None

    def _next_again(self, now: float) -> _Batch | None:
        return self._again.popleft() if self._again else None

    def _next_of_round(self, now: float) -> _Batch | None:
        if not self._round or now - self._round[0].asked_at < _ROUND_S:
            return None
        batch = self._round.popleft()
        # What is small grows together, by one a step: so no step pays for many.
        if self._round and len(batch.chunks) + len(self._round[0].chunks) <= WHERE_KEYS_MAX:
            batch.take_in(self._round.popleft())
        return batch

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
        if batch.chunks:
            (self._again if batch.again else self._round).append(batch)
            batch.again = False

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
        """What differs from what was told.

        First all that isn't where it was, then what has come: who knows one place of a block only must end with where it is.
        """
        told = _Told.ALL
        left = self._came_at_once
        gone: dict[Tier, list] = {}
        coming: list[tuple[PlacedChunk, Tier]] = []
        last: set[Hashable] = set()  # blocks of those that come
        for chunk, tier in found:
            if chunk.tier == tier:
                continue
            if tier and chunk.parent is not None and chunk.parent not in self._told and chunk.parent not in last:
                told = max(told, _Told.SOME_WAITS)
            elif tier and left == 0:
                told = _Told.MUCH_IS_LEFT
                continue
            elif tier:
                left -= 1
                coming.append((chunk, tier))
                last.add(chunk.hashes[-1])
            if chunk.tier:
                self._leave(chunk, gone)
        came: list[list[PlacedChunk]] = []  # runs
        for chunk, tier in coming:
            if chunk.parent is not None and chunk.parent not in self._told:  # that comes behind it
                told = max(told, _Told.SOME_WAITS)
            elif not self._come(chunk, tier):
                continue  # a chunk with the same blocks is there
            elif came and chunk.follows(came[-1][-1]):
                came[-1].append(chunk)
            else:
                came.append([chunk])
        self._events += [self._terms.removed(tier, hashes) for tier, hashes in gone.items()]
        self._events += map(self._terms.stored, came)
        return told

    def _leave(self, chunk: PlacedChunk, gone: dict[Tier, list]) -> None:
        last, tier = chunk.hashes[-1], chunk.tier
        chunk.tier = _NOWHERE
        if _one_less(self._at, (last, tier)):
            gone.setdefault(tier, []).extend(chunk.hashes)
        _one_less(self._told, last)

    def _come(self, chunk: PlacedChunk, tier: Tier) -> bool:
        """Whether it is the first of these blocks there."""
        last = chunk.hashes[-1]
        chunk.tier = tier
        self._told[last] += 1
        self._at[last, tier] += 1
        return self._at[last, tier] == 1


def _one_less(count: Counter, of: Hashable) -> bool:
    """Whether it was the last."""
    count[of] -= 1
    if count[of]:
        return False
    del count[of]
    return True
