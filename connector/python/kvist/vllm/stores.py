"""The scheduler's side of stores: what a step fills, or is about to lose, becomes a store in its plan.

Eager: a request's full chunks, in the step that fills them, or a later one. Recurrent states with the chunk at whose end a step ends, and those that
vLLM says it has made: at once, for their blocks are given back soon. On eviction: see `kvist.vllm.eviction`. Which blocks are read meanwhile: `kvist.vllm.readers`.
"""

import dataclasses
import operator
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from kvist.vllm.events import KvEvents
from kvist.vllm.eviction import Chunk, EvictionStores
from kvist.vllm.groups import Tables
from kvist.vllm.plan import Plan, Report, Store
from kvist.vllm.readers import Readers
from kvist.vllm.tracked import Tracked

_BLOCK_ID = operator.attrgetter("block_id")
_KEY = 32
_CHUNKS_MAX = 4096  # of a store, as kvist.h says


@dataclasses.dataclass(slots=True)
class _Fill:
    """What is told, and offered again where it isn't kept: the chunks [first, until) of a request, or on eviction a run.

    jobs  stores of it that are under way: of the groups that need whole prefixes, without which nobody finds what comes behind
    kept  by all of them and all ranks so far
    age   KvEvents.age when it was begun
    """

    tracked: Tracked | None = None
    first: int = 0
    until: int = 0
    run: list[Chunk] = dataclasses.field(default_factory=list)
    jobs: int = 0
    kept: bool = True
    age: int = 0


@dataclasses.dataclass(slots=True)
class _Job:
    """A store under way. ranks: those still at it. fill: whose it is; None: what of it isn't kept makes hits shorter, and nobody asks about it again.
    held: blocks with a reference of ours."""

    ranks: int
    fill: _Fill | None
    held: list[KVCacheBlock]


class Stores:
    """Threads: the scheduler's."""

    def __init__(
        self,
        manager: KVCacheManager,
        tables: Tables,
        ranks: int,
        jobs: Iterator[int],
        evict_ahead: int | None,
        events: KvEvents | None,
        holds: bool,
        first_needed: Callable[[int, int], int],
    ) -> None:
        """evict_ahead: blocks at the head of the free queue that are stored; None: eager. events: None if nobody wants them. holds: a store keeps its
        blocks from being handed out, where it can't be stopped before they are written. first_needed: `kvist.Client.first_needed`."""
        pool = self._pool = manager.block_pool
        if evict_ahead is not None and not pool.enable_caching:
            raise ValueError("store on_eviction needs vLLM's prefix cache: without it nothing is kept that could be evicted")
        self._blocks_of = manager.coordinator.get_blocks
        self._tables = tables
        self._order = sorted(range(len(tables)), key=lambda group: group != tables.first_full)
        self._of_tokens = [group for group in self._order if group not in tables.recurrent]
        self._vital = tables.full or frozenset((tables.first_full,))
        self._ranks = ranks
        self._jobs = jobs
        self._readers = Readers(pool)
        self._on_eviction = EvictionStores(pool, evict_ahead) if evict_ahead is not None else None
        self._storing: dict[int, _Job] = {}  # [job]
        self._events = events
        self._holds = holds
        self._first_needed = first_needed

    def take_stopped(self) -> list[int]:
        """Stores to stop before this step writes."""
        return self._readers.take_stopped()

    def filled(self, tracked: Tracked, until: int, step: tuple[int, int], plan: Plan) -> None:
        """The request's chunks up to `until` are full with this step, which computes tokens [step[0], step[1]): stores those that kvistd
        hasn't, or remembers them."""
        first = tracked.next_store
        if first >= until:
            return
        size = self._tables.chunk_tokens
        tracked.prompt.extend(until * size)
        blocks = self._blocks_of(tracked.request.request_id)
        tracked.stored_until(until)
        if tracked.stored_first is None:
            tracked.stored_first = first
        if self._on_eviction is not None:
            self._keep(tracked, blocks, first, until)
            return
        fill = _Fill(tracked, first, until, age=self._age)
        windowed = self._tables.windowed
        for group in self._of_tokens:
            table, per_chunk = self._tables[group]
            own = blocks[table][first * per_chunk : until * per_chunk]
            if len(own) != (until - first) * per_chunk:
                continue
            whole = group not in windowed and until - first <= _CHUNKS_MAX
            for begin, end in ((first, until),) if whole else self._parts(group, own, first, until):
                vital = group in self._vital and (end == until or group not in windowed)
                part = own if whole else own[(begin - first) * per_chunk : (end - first) * per_chunk]
                self._begin(fill if vital else None, tracked, begin, end, group, part, plan)
        if self._tables.recurrent and until * size in step and until * size != tracked.state_at:
            tracked.state_at = until * size
            for group in self._tables.recurrent:
                table, per_chunk = self._tables[group]
                if own := self._state(blocks[table], until * per_chunk):
                    self._begin(None, tracked, until - 1, until, group, own, plan)

    def _parts(self, group: int, own: Sequence[KVCacheBlock], first: int, until: int) -> Iterator[tuple[int, int]]:
        """What a group of tokens' KV has of chunks [first, until), whose blocks are `own`, as [begin, end), so many as a store may have. Of a window
        what it needs from here on by itself: what it has left behind may be handed out with the next step, and its store be stopped."""
        begin = left = first
        if group in self._tables.windowed:
            gone = next((i for i, block in enumerate(own) if not block.is_null), len(own))
            begin += -(-gone // self._tables[group][1])
            left = min(max(begin, self._first_needed(group, until)), until)
        for here, there in ((left, until), (begin, left)):
            for at in range(here, there, _CHUNKS_MAX):
                yield at, min(at + _CHUNKS_MAX, there)

    @staticmethod
    def _state(table: Sequence[KVCacheBlock], blocks: int) -> Sequence[KVCacheBlock]:
        """The block whose state is that after so many blocks' tokens, where a step ends there or goes on from there: no later one changes it."""
        own = table[blocks - 1 : blocks]
        return [] if not own or own[0].is_null else own

    def offered(self, tracked: Tracked, states: Iterable[tuple[int, int, int]], plan: Plan) -> None:
        """States that vLLM's own cache keeps, (block table, block, tokens up to it), as some backends make them inside a step. Stores those at ends
        of chunks. Not those of a step that begins inside a block, which may have gone past the block's end without making one there."""
        size = self._tables.chunk_tokens
        begins = tracked.request.num_computed_tokens
        for of_table, block, tokens in states:
            until, inside = divmod(tokens, size)
            loaded = tracked.may_load and tracked.hit is not None and until == tracked.hit.chunks
            if inside or loaded or begins % size or tokens > tracked.request.num_tokens:
                continue
            tracked.prompt.extend(tokens)
            tracked.state_at = tokens
            for group in self._tables.recurrent:
                if self._tables[group][0] == of_table:
                    self._begin(None, tracked, until - 1, until, group, [self._pool.blocks[block]], plan)

    @property
    def _age(self) -> int:
        return self._events.age if self._events is not None else 0

    def _begin(
        self,
        fill: _Fill | None,
        tracked: Tracked,
        first: int,
        until: int,
        group: int,
        blocks: Sequence[KVCacheBlock],
        plan: Plan,
    ) -> None:
        """Stores chunks [first, until) of a request, in one group, with the step that is planned."""
        parents = 1 if first else 0
        self._store(fill, tracked.request.request_id, tracked.prompt.keys(first - parents, until), parents, group, blocks, plan)

    def _store(
        self, fill: _Fill | None, of: str, keys: bytes, parents: int, group: int, blocks: Sequence[KVCacheBlock], plan: Plan
    ) -> None:
        job = next(self._jobs)
        pages = array("I", map(_BLOCK_ID, blocks))
        held: list[KVCacheBlock] = []
        if self._holds:
            held = list(blocks)
            self._pool.touch(held)
        else:
            self._readers.begin(job, pages)
        if fill is not None:
            fill.jobs += 1
        self._storing[job] = _Job(self._ranks, fill, held)
        plan.stores.append(Store(job, of, keys, parents, group, pages))

    # ---- on eviction ----

    def _keep(self, tracked: Tracked, blocks: Sequence[Sequence[KVCacheBlock]], first: int, until: int) -> None:
        """Remembers chunks [first, until) until their blocks are about to be reused."""
        keys = tracked.prompt.keys(max(first - 1, 0), until)
        keys = keys if first else bytes(_KEY) + keys
        chunk = tracked.last_kept
        for number in range(first, until):
            at = (number - first + 1) * _KEY
            key, parent_key = keys[at : at + _KEY], keys[at - _KEY : at] if number else b""
            own: list[list[KVCacheBlock]] = []
            for table, per_chunk in self._tables:
                part = list(blocks[table][number * per_chunk : (number + 1) * per_chunk])
                own.append([] if len(part) < per_chunk or any(block.is_null for block in part) else part)
            anchor = next((part[0] for part in own if part), None)
            if anchor is None:
                return
            known = self._on_eviction.find(anchor, key)  # another request's, shared
            if known is None:
                to_tell = None
                if self._events is not None:
                    to_tell = self._events.chunk_of(tracked.request, tracked.prompt, number)
                known = Chunk(key, parent_key, chunk, own, to_tell)
                self._on_eviction.add(known)
            chunk = known
        tracked.last_kept = chunk

    def due(self, plan: Plan) -> None:
        """Stores what the pool is about to reuse."""
        if self._on_eviction is None:
            return
        for run in self._on_eviction.due():
            self._store_run(run, plan)

    def _store_run(self, run: list[Chunk], plan: Plan) -> None:
        """Stores consecutive chunks, in each group those that still have their blocks there."""
        keys = run[0].parent_key + b"".join(chunk.key for chunk in run)
        before = 1 if run[0].parent_key else 0
        fill = _Fill(run=run, age=self._age)
        for group in self._order:
            skip = next((i for i, chunk in enumerate(run) if chunk.blocks[group]), len(run))
            if skip == len(run) or not all(chunk.blocks[group] for chunk in run[skip:]):
                continue
            for at in range(skip, len(run), _CHUNKS_MAX):
                parents = min(before + at, 1)
                own = keys[(before + at - parents) * _KEY : (before + at + _CHUNKS_MAX) * _KEY]
                chunks = run[at : at + _CHUNKS_MAX]
                blocks = [block for chunk in chunks for block in chunk.blocks[group]]
                self._store(fill if group in self._vital else None, "", own, parents, group, blocks, plan)

    # ---- what came of it ----

    def take(self, report: Report) -> list[str]:
        """The requests that should offer their chunks again: some of them were not kept."""
        for job in (*report.refused, *report.unstored):
            if (fill := self._storing[job].fill) is not None:
                fill.kept = False
        again: list[str] = []
        for job, ranks in report.stored.items():
            store = self._storing[job]
            store.ranks -= ranks
            if store.ranks > 0:
                continue
            del self._storing[job]
            if self._holds:
                self._pool.free_blocks(reversed(store.held))
            else:
                self._readers.end(job)
            if store.fill is not None:
                store.fill.jobs -= 1
                if not store.fill.jobs:
                    self._ended(store.fill, again)
        return again

    def _ended(self, fill: _Fill, again: list[str]) -> None:
        if self._events is not None:
            if fill.tracked is not None:
                self._events.stored(fill.tracked.request, fill.tracked.prompt, fill.first, fill.until, fill.age)
            self._events.stored_chunks(chunk.to_tell for chunk in fill.run if chunk.to_tell is not None)
        if fill.run:
            self._on_eviction.ended(fill.run, fill.kept)
        elif not fill.kept and fill.tracked is not None:
            again.append(fill.tracked.request.request_id)

    @property
    def hold_blocks(self) -> bool:
        """Whether some have blocks that nobody gets before they have ended."""
        return self._holds and bool(self._storing)

    def forget(self) -> None:
        """Nothing that was remembered, or is under way, is to be offered or told of: a reset. What is under way ends as it does."""
        if self._on_eviction is not None:
            self._on_eviction.forget()
        for store in self._storing.values():
            if store.fill is not None:
                store.fill.tracked, store.fill.run = None, []
