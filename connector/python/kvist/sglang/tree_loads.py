"""Lookups of what the tree lacks, and loads of what was found.

A load's pages are in no tree until all ranks have them: until then nobody can match them, and a load that fails leaves nothing but pages to
give back, which happens when nothing writes into them any more.
"""

import logging
import time
from array import array
from collections import Counter
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.common import evict_from_tree_cache
from sglang.srt.mem_cache.radix_cache import RadixKey

from kvist.client import NO_PAGE, Client
from kvist.hangs import HangWatch
from kvist.sglang.copies import Copies, Copy
from kvist.sglang.events import KvEvents
from kvist.sglang.ranks import UNKNOWN, Ranks
from kvist.sglang.settings import TreeSettings
from kvist.sglang.tracked import Load, Stage, Tracked
from kvist.status import KvistError, Status

logger = logging.getLogger(__name__)

# How long a new request's lookup is waited for. An answer takes some 100 us; later ones are heard with the next step.
_PATIENCE_S = 0.001
# How long a load that was given up is waited for, when a running request has no other pages left.
_HURRY_S = 0.1
_SAY_AGAIN_S = 30.0
_UNDER_WAY, _FAILED, _THERE = range(3)


class Loads:
    def __init__(
        self,
        cache: Any,
        client: Client,
        copies: Copies,
        ranks: Ranks,
        settings: TreeSettings,
        page_tokens: int,
        counts: Counter,
        events: KvEvents | None,
    ) -> None:
        self._cache = cache
        self._client = client
        self._copies = copies
        self._ranks = ranks
        self._settings = settings
        self._page_tokens = page_tokens
        self._chunk_tokens = settings.chunk_tokens_of(page_tokens)
        self._counts = counts
        self._events = events
        self.watch = HangWatch()
        self._asked: list[Tracked] = []
        self._loading: list[Tracked] = []
        self._late: list[Load] = []  # given up, but kvistd may still write

    @property
    def tokens_in_flight(self) -> int:
        """Of pages that are neither free, nor in the tree, nor a request's."""
        loads = [tracked.load for tracked in self._loading] + self._late
        return sum(len(load.indices) for load in loads)

    @property
    def busy(self) -> bool:
        return bool(self._asked or self._loading or self._late)

    # ---- lookup ----

    def worth_asking(self, tracked: Tracked, tokens: int, have: int) -> bool:
        """Whether full chunks of a prompt of `tokens` hold enough of what the tree lacks."""
        full = tokens // self._chunk_tokens * self._chunk_tokens
        return min(full, tracked.end) - have >= max(self._settings.load_min_tokens, self._page_tokens)

    def ask(self, tracked: Tracked, tokens: array) -> None:
        """Begins the lookup of a prompt; waits for its answer for a moment. The first rank asks for all."""
        tracked.prompt.extend(tokens, len(tokens))
        tracked.stage = Stage.ASKED
        self._asked.append(tracked)
        if self._events is not None:
            tracked.tokens = tokens
        if self._ranks.rank > 0:
            return
        if self.watch.hangs():
            tracked.answer = (0, 0)
            self._counts["lookups_missed"] += 1
            return
        chunks = -(-tracked.end // self._chunk_tokens)
        try:
            tracked.op = self._client.lookup_start(
                tracked.prompt.keys(0, chunks), lease_s=self._settings.lease_s, deadline_s=self._settings.lookup_timeout_s
            )
        except KvistError:
            tracked.answer = (0, 0)
            self._counts["lookups_missed"] += 1
            return
        self._hear(tracked, _PATIENCE_S)

    def _hear(self, tracked: Tracked, timeout_s: float) -> None:
        hit = self._client.lookup_result(tracked.op, timeout_s)
        if hit is not None:
            tracked.op = 0
            self.watch.answered(in_time=hit.status != Status.DEADLINE_EXCEEDED)
            tracked.answer = (hit.chunks, hit.lease) if hit.lease else (0, 0)
            self._counts["lookups" if hit.status == Status.OK else "lookups_missed"] += 1

    # ---- what the scheduler is promised ----

    def promised(self, tracked: Tracked, have: int) -> int:
        """How many tokens behind the tree's `have` are on their way: the scheduler asks for them by `begin` before it admits the request."""
        if tracked.stage == Stage.ASKED:
            return self._page_tokens
        if tracked.stage == Stage.LOADING:
            return max(tracked.load.end - have, 0)
        if tracked.stage != Stage.FOUND:
            return 0
        more = min(tracked.chunks * self._chunk_tokens, tracked.end) - have
        if more < max(self._settings.load_min_tokens, self._page_tokens):
            self.drop(tracked)
            return 0
        return more

    # ---- load ----

    def begin(self, tracked: Tracked, node: Any, have: int, tokens: array) -> bool:
        """Begins to load what was found into pages of its own, behind the `have` tokens up to `node`. False: there is no room."""
        end = min(tracked.chunks * self._chunk_tokens, tracked.end)
        lock = self._cache.lock(node)
        allocator = self._cache.token_to_kv_pool_allocator
        evict_from_tree_cache(self._cache, end - have)
        indices = allocator.alloc(end - have)
        if indices is None:
            self._cache.unlock(lock)
            self.drop(tracked)
            self._counts["loads_without_room"] += 1
            return False
        first = have // self._chunk_tokens
        table = self._table(indices, have - first * self._chunk_tokens)
        copy = self._copies.load(tracked.lease, table, first_chunk=first, chunk_count=len(table) // self._pages_per_chunk)
        tracked.load = Load(copy, have, end, indices, lock, tokens[:end])
        tracked.stage = Stage.LOADING
        self._loading.append(tracked)
        self._counts["asked_tokens"] += end - have
        return True

    @property
    def _pages_per_chunk(self) -> int:
        return self._chunk_tokens // self._page_tokens

    def _table(self, indices: torch.Tensor, skipped: int) -> array:
        """Pages of whole chunks, of which the first `skipped` tokens and those behind `indices` aren't written."""
        pages = array("I", (indices[:: self._page_tokens] // self._page_tokens).to(torch.int32).numpy().tobytes())
        before = skipped // self._page_tokens
        after = -(before + len(pages)) % self._pages_per_chunk
        nothing = array("I", [NO_PAGE])
        return nothing * before + pages + nothing * after

    # ---- in step with the other ranks ----

    def report(self) -> list[int]:
        """[late loads, loads, 2 for each lookup] how far each is on this rank."""
        for load in self._late:
            self._copies.look(load.copy)
        values = [int(load.copy.quiet) for load in self._late]
        values += [self._state(tracked.load.copy) for tracked in self._loading]
        for tracked in self._asked:
            if tracked.op:
                self._hear(tracked, 0.0)
            chunks, lease = tracked.answer or (-1, 0)
            values += (
                (UNKNOWN, UNKNOWN) if self._ranks.rank > 0 else (chunks, lease - (lease >> 63 << 64))
            )  # as a signed number
        return values

    def _state(self, copy: Copy) -> int:
        self._copies.look(copy)
        if copy.pending:
            return _UNDER_WAY
        return _FAILED if copy.failed or not copy.quiet else _THERE

    def take(self, values: list[int]) -> None:
        """[as reported] the least of all ranks'."""
        late, loading, asked = self._late, self._loading, self._asked
        self._late, self._loading, self._asked = [], [], []
        for load, quiet in zip(late, values):
            if quiet:
                self._give_back(load)
            else:
                self._late.append(load)
        for tracked, state in zip(loading, values[len(late) :]):
            if state == _UNDER_WAY:
                self._loading.append(tracked)
            else:
                self._ended(tracked, state == _THERE)
        answers = values[len(late) + len(loading) :]
        for tracked, chunks, lease in zip(asked, answers[::2], answers[1::2]):
            if chunks < 0:
                self._asked.append(tracked)
                continue
            tracked.chunks, tracked.lease = chunks, lease % (1 << 64)
            tracked.kept = max(tracked.kept, chunks)
            tracked.stage = Stage.FOUND if chunks else Stage.OVER
            if self._events is not None:
                self._events.found(tracked, tracked.tokens, chunks)
                tracked.tokens = None

    def _ended(self, tracked: Tracked, there: bool) -> None:
        load, tracked.load = tracked.load, None
        self._release(tracked)
        if not there:
            self._counts["loads_failed"] += 1
            self._leave(load)
            return
        # What others have computed meanwhile stays as it is in the tree, which gives our pages of it back.
        before = self._cache.path_device_indices(load.lock.node)[: load.first]
        self._cache.insert(
            InsertParams(
                key=RadixKey(load.tokens, tracked.extra_key, cache_salt=tracked.salt),
                value=torch.cat([before.to(torch.int64), load.indices.to(torch.int64)]),
                prev_prefix_len=load.first,
                inserted_len=load.end,
                priority=tracked.priority,
            )
        )
        self._cache.unlock(load.lock)
        tracked.stage = Stage.THERE
        self._counts["loads"] += 1
        self._counts["loaded_tokens"] += load.end - load.first

    def _leave(self, load: Load) -> None:
        """Of a load that is over for its request."""
        self._copies.give_up(load.copy)
        self._late.append(load)

    def _give_back(self, load: Load) -> None:
        self._cache.token_to_kv_pool_allocator.free(load.indices)
        self._cache.unlock(load.lock)

    def _release(self, tracked: Tracked) -> None:
        """Of the lease, and of the request's hopes."""
        tracked.stage = Stage.OVER
        lease, tracked.lease = tracked.lease, 0
        if lease and self._ranks.rank == 0:
            self._client.release(lease)

    def drop(self, tracked: Tracked) -> None:
        """The request goes on, or away, without kvistd."""
        if tracked.stage == Stage.ASKED:
            self._asked.remove(tracked)
            if tracked.op:
                self._client.cancel(tracked.op)
            elif tracked.answer is not None:
                tracked.lease = tracked.answer[1]
        elif tracked.stage == Stage.LOADING:
            self._loading.remove(tracked)
            load, tracked.load = tracked.load, None
            self._leave(load)
        self._release(tracked)

    def hurry(self) -> None:
        """Gives all loads up, and waits for a moment until nothing writes into their pages."""
        for tracked in list(self._loading):
            self.drop(tracked)
        until = time.monotonic() + _HURRY_S
        for load in self._late:
            if not load.copy.quiet and (left := until - time.monotonic()) > 0:
                self._copies.wait(load.copy, left)

    def stop(self) -> None:
        """Gives all up; nothing writes into their pages when it returns, however long a kvistd that was stopped takes to go on or to end."""
        for tracked in [*self._asked, *self._loading]:
            self.drop(tracked)
        said = time.monotonic()
        for load in self._late:
            while not load.copy.quiet:
                self._copies.wait(load.copy, 1.0)
                if time.monotonic() - said > _SAY_AGAIN_S:
                    said = time.monotonic()
                    logger.warning(
                        "kvistd has stopped in the middle of a load; the cache can't be flushed until it goes on or ends"
                    )
            self._give_back(load)
        self._late = []
