"""What the radix cache does with kvistd for each request.

A request's life here:
  match        as long as it waits: kvistd is asked for what the tree lacks of its prompt; what is on its way is promised to the scheduler
  load         the scheduler, about to admit the request, wants the promise kept: the load begins, and the request waits. When the load has
               ended its pages are in the tree, the next match finds them there, and the request is admitted
  checkpoint   each prefill chunk, and the end: full chunks of what the tree has taken are stored. Their pages are locked in the tree
               meanwhile; a store that is slow is given up when somebody needs the room
  drop         aborted, retracted, finished: hopes are given up; stores go on

The first rank asks kvistd for all. What each rank sees of copies differs, and the trees must not: what has ended is what has ended on all ranks
(`progress`), and every rank calls this in the same order.

Threads: the scheduler's. Nothing waits for kvistd but a new lookup, 1 ms, a running request without a page, 0.1 s, and a reset.
"""

import logging
import uuid
from collections import Counter
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, MatchPrefixParams, MatchResult

from kvist.client import Client
from kvist.describe import Memory, Role, Space
from kvist.sglang.copies import Copies
from kvist.sglang.events import KvEvents
from kvist.sglang.metrics import Metrics
from kvist.sglang.prompt import Prompt, has_keys
from kvist.sglang.ranks import Ranks
from kvist.sglang.settings import TreeSettings
from kvist.sglang.tracked import Stage, Tracked
from kvist.sglang.tree_loads import Loads
from kvist.sglang.tree_stores import Stores
from kvist.watch import Watch

logger = logging.getLogger(__name__)

# What `TreeSide.counts` has, of one rank.
COUNTS = {
    "lookups": "lookups that were answered",
    "lookups_missed": "lookups that kvistd didn't answer: away, hung, or full",
    "asked_tokens": "tokens whose load was begun",
    "loads": "loads that ended well",
    "loaded_tokens": "tokens that the tree has got from kvistd",
    "loads_failed": "loads that failed: computed instead",
    "loads_without_room": "loads that found no room in the KV pool: computed instead",
    "stores": "stores that ended well",
    "stores_failed": "stores that failed, were given up, or some of whose chunks had no room",
}


class TreeSide:
    """One rank's. `counts`: what happened since the start, by the names of COUNTS."""

    def __init__(
        self,
        cache: Any,
        ranks: Ranks,
        space: Space,
        memory: Memory,
        settings: TreeSettings,
        *,
        metrics: Metrics | None,
        events: KvEvents | None,
    ) -> None:
        """cache: a UnifiedRadixCache; metrics: where counts are told, if anywhere; events: if this rank publishes any.
        Raises KvistError for a description that proves wrong."""
        self._instance = ranks.of_first(f"sglang tree {uuid.uuid4().hex}")
        self._client = Client(
            role=Role.WORKER,
            instance=self._instance,
            space=space,
            rank=ranks.rank,
            memory=memory,
            socket=settings.socket,
            connect_timeout_s=settings.connect_timeout_s,
            ask_again=True,
        )
        self._watch = Watch(self._client, logger)
        self._watch.look()
        self._metrics = metrics
        self._events = events
        self._cache = cache
        self._ranks = ranks
        self._chunk_tokens = space.chunk_tokens
        self._page_tokens = space.page_tokens
        self._requests: dict[str, Tracked] = {}  # [rid]
        self._generation = 0
        self._in_progress = False
        self.counts: Counter = Counter()
        copies = Copies(self._client, load_timeout_s=settings.load_timeout_s, store_timeout_s=settings.store_timeout_s)
        self._loads = Loads(cache, self._client, copies, ranks, settings, space.page_tokens, self.counts, events)
        self._stores = Stores(cache, copies, space.chunk_tokens, space.page_tokens, self.counts, events)

    @property
    def tokens_in_flight(self) -> int:
        return self._loads.tokens_in_flight

    @property
    def busy(self) -> bool:
        """Something is under way."""
        return self._stores.busy or self._loads.busy

    def progress(self) -> None:
        """Takes in what has ended on all ranks."""
        self._watch.look()
        if self._metrics is not None:
            self._metrics.tell(self.counts, away=not self._watch.connected)
        if self._in_progress:
            return
        stores = self._stores.report()
        states = self._ranks.least(stores + self._loads.report())
        if not states:
            return
        self._in_progress = True
        try:
            self._stores.take(states[: len(stores)])
            self._loads.take(states[len(stores) :])
        finally:
            self._in_progress = False

    def before_match(self, tokens: int) -> None:
        """`progress`; and no request waits for pages, so many tokens' of them, because kvistd is slow to read them."""
        self.progress()
        if self._lacks(tokens):
            self._stores.stop_late()

    def before_alloc(self, tokens: int) -> None:
        """`progress`; and nobody who was admitted goes without pages for what kvistd reads or writes, unless it was stopped in a write."""
        self.progress()
        if not self._in_progress and self._lacks(tokens):
            self._stores.stop()
            if self._lacks(tokens):
                self._loads.hurry()
                self.progress()

    def _lacks(self, tokens: int) -> bool:
        return self._cache.token_to_kv_pool_allocator.available_size() + self._cache.evictable_size() < tokens

    # ---- the scheduler's calls ----

    def serves(self, req: Any) -> bool:
        return has_keys(req)

    def match(self, params: MatchPrefixParams, result: MatchResult) -> MatchResult:
        """What the tree answered, and how much more is on its way. A load must not end between the two: it would be promised no more, and
        the answer lacks it."""
        tracked = self._track(params.req)
        if tracked is None:
            return result
        have = result.device_prefix_len
        tracked.end = len(params.key) // self._page_tokens * self._page_tokens
        tokens = params.key.token_ids
        if not self._loads.worth_asking(tracked, len(tokens), have):
            if tracked.stage == Stage.FOUND:
                self._loads.drop(tracked)
            return result
        if tracked.stage == Stage.NEW:
            try:
                self._loads.ask(tracked, tokens)
            except ValueError:  # no tokens of a vocabulary
                tracked.stage = Stage.OVER
            self.progress()
        promised = self._loads.promised(tracked, have)
        return result._replace(host_hit_length=promised, last_host_node=result.best_match_node) if promised else result

    def load(self, req: Any) -> tuple[int, Any] | None:
        """What was promised for a request that is about to be admitted. None: it isn't there yet; (0, node): it won't come."""
        tracked = self._requests.get(req.rid)
        nothing = (0, req.last_node)
        if tracked is None or tracked.stage == Stage.OVER:
            return nothing
        if tracked.stage == Stage.FOUND and not self._loads.begin(
            tracked, req.last_node, req.prefix_len, req.full_untruncated_fill_ids
        ):
            return nothing
        return None  # also when it has come since the match

    def checkpoint(self, req: Any) -> None:
        """The tree has taken what the request has computed."""
        tracked = self._track(req)
        if tracked is None:
            return
        try:
            self._stores.offer(tracked, req.full_untruncated_fill_ids, req.last_node, req.kv.cache_protected_len)
        except ValueError:  # no tokens of a vocabulary
            pass

    def drop(self, rid: str) -> None:
        tracked = self._requests.pop(rid, None)
        if tracked is not None:
            self._loads.drop(tracked)

    def aborted(self, handle: CacheRequestHandle) -> None:
        self.drop(handle.rid)

    def take_events(self) -> list:
        """KV events of what has changed in kvistd. Also while SGLang is idle, when there are no batches."""
        if self._events is None:
            return []
        self._events.progress(self._client, self._loads.watch)
        return self._events.take()

    def after_batch(self) -> None:
        """`progress`; and KV events are gathered: SGLang takes them once in 40 batches only, while it decodes."""
        self.progress()
        if self._events is not None:
            self._events.progress(self._client, self._loads.watch)

    def _track(self, req: Any) -> Tracked | None:
        tracked = self._requests.get(req.rid)
        if tracked is not None and not tracked.of(req):
            self.drop(req.rid)
            tracked = None
        if tracked is None and has_keys(req):
            generation = f"{self._instance} {self._generation}" if self._generation else ""
            tracked = self._requests[req.rid] = Tracked(req, Prompt(req, self._chunk_tokens, generation))
        return tracked

    # ---- lifecycle ----

    def reset(self) -> None:
        """The tree forgets all, and what this engine stored before isn't found by it any more: its weights may be others now.

        Nothing touches the pages when it returns.
        """
        for tracked in self._requests.values():
            self._loads.drop(tracked)
        self._requests.clear()
        self._stores.stop()
        self._loads.stop()
        self._generation += 1
        if self._events is not None:
            self._events.forget_all(self._client)

    def close(self) -> None:
        self._client.close()
        if self._metrics is not None:
            self._metrics.close()
