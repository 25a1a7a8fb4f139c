"""Stores of what requests have computed: the tree holds the pages, locked until kvistd has read them."""

import dataclasses
import time
from array import array
from collections import Counter
from typing import Any

import torch

from kvist.sglang.copies import Copies, Copy
from kvist.sglang.events import KvEvents
from kvist.sglang.tracked import Tracked

# How long a store's pages are kept from requests that have no other room. Most stores take a few ms.
_PATIENCE_S = 0.2
_UNDER_WAY, _LATE, _NOT_KEPT, _KEPT = range(4)


@dataclasses.dataclass
class _Store:
    tracked: Tracked
    copy: Copy
    lock: Any
    begun: float
    tokens: array
    first: int  # of its chunks
    until: int
    age: int  # KvEvents.age when it was begun
    state: int = _UNDER_WAY  # on all ranks, as of the last `take`


class Stores:
    """A store's node of the tree has a lock of ours: nothing on its path is evicted until all ranks' stores have ended."""

    def __init__(
        self, cache: Any, copies: Copies, chunk_tokens: int, page_tokens: int, counts: Counter, events: KvEvents | None
    ) -> None:
        self._cache = cache
        self._copies = copies
        self._chunk_tokens = chunk_tokens
        self._page_tokens = page_tokens
        self._counts = counts
        self._events = events
        self._stores: list[_Store] = []

    def offer(self, tracked: Tracked, tokens: array, node: Any, length: int) -> None:
        """The full chunks of the `length` tokens up to `node` that kvistd wasn't offered yet."""
        size, page = self._chunk_tokens, self._page_tokens
        first, until = tracked.kept, length // size
        if until <= first:
            return
        tracked.prompt.extend(tokens, until * size)
        indices = self._cache.path_device_indices(node)[first * size : until * size : page]
        pages = array("I", (indices // page).to(torch.int32).numpy().tobytes())
        parent = min(first, 1)
        lock = self._cache.lock(node)
        copy = self._copies.store(tracked.prompt.keys(first - parent, until), pages, first_chunk=parent)
        tracked.kept = until
        age = self._events.age if self._events is not None else 0
        self._stores.append(_Store(tracked, copy, lock, time.monotonic(), tokens, first, until, age))

    @property
    def busy(self) -> bool:
        return bool(self._stores)

    def report(self) -> list[int]:
        """[stores under way] how far each is on this rank."""
        return [self._state(store) for store in self._stores]

    def _state(self, store: _Store) -> int:
        self._copies.look(store.copy)
        if not store.copy.quiet:
            return _LATE if time.monotonic() - store.begun > _PATIENCE_S else _UNDER_WAY
        return _NOT_KEPT if store.copy.failed or store.copy.refused else _KEPT

    def take(self, states: list[int]) -> None:
        """[as reported] the least of all ranks'."""
        under_way = []
        for store, store.state in zip(self._stores, states):
            if store.state in (_UNDER_WAY, _LATE):
                under_way.append(store)
            else:
                self._ended(store, store.state == _KEPT)
        self._stores = under_way

    def _ended(self, store: _Store, kept: bool) -> None:
        self._cache.unlock(store.lock)
        self._counts["stores" if kept else "stores_failed"] += 1
        if self._events is not None:  # also when some of it wasn't kept: kvistd is asked what was
            self._events.stored(store.tracked, store.tokens, store.first, store.until, store.age)
        if not kept and store.tracked.offers_left > 0:
            # Without its first chunks nobody finds the later ones: what comes next offers all of them.
            store.tracked.offers_left -= 1
            store.tracked.kept = 0

    def stop_late(self) -> None:
        """Gives up what is late on all ranks: somebody waits for its pages. What all ranks agreed on is what they do."""
        late = [store for store in self._stores if store.state == _LATE]
        self._stores = [store for store in self._stores if store.state != _LATE]
        self._stop(late)

    def stop(self) -> None:
        """Gives all up; nothing reads their pages when it returns."""
        self._stop(self._stores)
        self._stores = []

    def _stop(self, stores: list[_Store]) -> None:
        for store in stores:
            self._copies.give_up(store.copy)
        for store in stores:
            while not store.copy.quiet:
                self._copies.wait(store.copy, 1.0)
            self._ended(store, kept=False)
