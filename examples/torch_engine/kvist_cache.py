"""kvist for this engine: all calls to kvist, in the words of an engine. engine.py shows where in its life they are called.

    lookup  a request comes          ask; hit_tokens when there is room for it
    load    its hit goes into pages  start_load, then poll_load once a step until it isn't pending
    store   a step has filled chunks store_filled; poll once a step
    cancel  a request is aborted     abandon
    wait    nothing else is to do    hit_tokens and poll_load with a timeout; flush before pages are needed for others

One rule keeps copies and computing apart: a copy under way holds a reference to each page that it touches. Whatever happens
to the request, such a page isn't given to another before the copy has ended.

Nothing here can fail a request: what kvist doesn't deliver is computed. Every wait is bounded. Threads: one, the engine's.
"""

import dataclasses
import enum
import logging
import time
from collections.abc import Sequence

import kvist
import torch

from torch_engine.memory import PagedMemory
from torch_engine.model import PAGE_TOKENS, ModelConfig
from torch_engine.page_pool import PagePool

_log = logging.getLogger(__name__)
# Copies under way; beyond it chunks wait for a later step, as a daemon that is so far behind needs no more work.
_COPIES_MAX = 64
_MISS = kvist.Hit(0, 0)
# What only a mistake of ours makes kvist say.
_BUGS = (kvist.Status.INVALID_ARGUMENT, kvist.Status.FAILED_PRECONDITION, kvist.Status.INTERNAL)


@dataclasses.dataclass(frozen=True)
class KvistOptions:
    socket: str | None = None  # None: kvist's default
    instance: str = "torch_engine"  # names this engine; another running one needs another name
    chunk_tokens: int = 0  # a multiple of PAGE_TOKENS; 0: kvist's default
    lookup_deadline_s: float = 0.02  # a lookup is answered from memory; later than that it is a miss
    copy_deadline_s: float = 1.0  # of a load and of a store; a longer one survives a busier machine
    lease_s: float = 5.0  # more than both deadlines together
    connect_timeout_s: float = 1.0  # how long to wait for kvistd at the start; it may come later, too


@dataclasses.dataclass
class KvistStats:
    lookups: int = 0
    loads: int = 0
    loads_failed: int = 0
    chunks_loaded: int = 0
    stores: int = 0
    stores_cancelled: int = 0
    chunks_stored: int = 0
    chunks_skipped: int = 0
    chunks_refused: int = 0
    bugs: int = 0


class LoadState(enum.Enum):
    PENDING = 0
    LOADED = 1
    FAILED = 2


@dataclasses.dataclass
class KvistRequest:
    """What kvist knows and does for one request."""

    chain: kvist.Chain
    chained: int = 0  # tokens in the chain
    lookup: int | None = None  # op, while the answer isn't known
    asked_at: float = 0.0  # on the monotonic clock; 0: not since the last drop_hit
    hit: kvist.Hit | None = None  # of the last lookup; its lease lives until the load has ended or the hit is dropped
    load: int = 0  # op, while it is under way
    offered: int = 0  # chunks that are in kvist, or were given to a store


@dataclasses.dataclass
class _Copy:
    pages: list[int]  # referenced until the copy has ended
    is_load: bool
    awaited: bool  # by its request, through poll_load; others are poll's


def describe(config: ModelConfig, memory: PagedMemory, chunk_tokens: int) -> tuple[kvist.Space, kvist.Memory]:
    """What kvistd is told: which bytes it may reuse (the space), and where they lie, by the strides of the tensor itself."""
    kv, item = memory.kv, memory.kv.itemsize
    segment = kv[0, 0, 0].numel() * item  # K or V of a page in one layer

    def write_page(layer: int, page: int, content: memoryview) -> None:
        # Through the indexing by which attention reads: were the description wrong, kvistd would find these bytes elsewhere
        # and refuse.
        kv[layer, page] = torch.frombuffer(bytearray(content), dtype=kv.dtype).view(kv.shape[2:])

    space = kvist.Space(
        model="torch_engine",
        revision=config.revision,
        kv_dtype="bf16",
        layout=f"k,v torch-{torch.__version__}",  # another torch may round otherwise, and draws other weights
        page_tokens=PAGE_TOKENS,
        chunk_tokens=chunk_tokens,
        groups=(kvist.Group(layers=config.layers, segment_bytes=segment, segments=2),),
    )
    return space, kvist.Memory(
        memfds=(memory.fd,),
        layers=[(0, layer.storage_offset() * item) for layer in kv],
        groups=(kvist.GroupPages(pages=kv.shape[1], page_stride=kv.stride(1) * item, dims=((2, kv.stride(2) * item),)),),
        write_page=write_page,
    )


class KvistCache:
    """Made by `connect`. Must be closed while the memory is still there."""

    def __init__(
        self, scheduler: kvist.Client, worker: kvist.Client, pool: PagePool, options: KvistOptions, chunk_tokens: int
    ) -> None:
        self._scheduler, self._worker, self._pool, self._options = scheduler, worker, pool, options
        self._copies: dict[int, _Copy] = {}  # by op
        self.chunk_tokens = chunk_tokens
        self.stats = KvistStats()

    @staticmethod
    def connect(options: KvistOptions, config: ModelConfig, memory: PagedMemory, pool: PagePool) -> "KvistCache":
        """Opens a session as scheduler and one as worker 0. Without a kvistd it succeeds, too: all is a miss until it comes.

        Raises KvistError when kvistd refuses, and ValueError.
        """
        chunk_tokens = options.chunk_tokens or kvist.default_chunk_tokens()
        if chunk_tokens % PAGE_TOKENS != 0:
            raise ValueError(f"chunk_tokens is {chunk_tokens}: must be a multiple of a page's {PAGE_TOKENS} tokens")
        space, kv_memory = describe(config, memory, chunk_tokens)
        common = {
            "socket": options.socket,
            "instance": options.instance,
            "space": space,
            "deadline_s": options.copy_deadline_s,
            "connect_timeout_s": options.connect_timeout_s,
        }
        scheduler = kvist.Client(role=kvist.Role.SCHEDULER, **common)
        try:
            worker = kvist.Client(role=kvist.Role.WORKER, rank=0, memory=kv_memory, **common)
        except BaseException:
            scheduler.close()
            raise
        return KvistCache(scheduler, worker, pool, options, chunk_tokens)

    def new_request(self) -> KvistRequest:
        return KvistRequest(kvist.Chain(self.chunk_tokens))

    # ---- lookup ----

    def ask(self, request: KvistRequest, tokens: Sequence[int]) -> None:
        """Starts looking up how far `tokens` can be resumed. Never waits; when kvistd is behind, hit_tokens asks again."""
        self.drop_hit(request)
        self._extend(request, tokens)
        request.asked_at = time.monotonic()
        self.stats.lookups += 1
        self._start_lookup(request, tokens)

    def hit_tokens(self, request: KvistRequest, tokens: Sequence[int], timeout_s: float = 0.0) -> int | None:
        """How many of `tokens`, from the start, can be loaded; they stay so until start_load or drop_hit. None: not known yet.

        Asks if that wasn't done, and again when a hit is half a lease old: the lease must last for a load.
        """
        if request.lookup is None and request.hit is None and request.asked_at:
            self._start_lookup(request, tokens)
        elif request.lookup is None and (request.hit is None or self._is_stale(request)):
            self.ask(request, tokens)
        if request.lookup is not None:
            try:
                hit = self._scheduler.lookup_result(request.lookup, timeout_s)
            except kvist.KvistError as error:
                self._note(error)
                hit = _MISS
            if hit is None:
                return None
            request.lookup, request.hit = None, hit
            request.offered = hit.chunks  # no need to store what is there
        if request.hit is None:
            return None
        # No lease: nothing is there, or there is no budget to keep it.
        return request.hit.chunks * self.chunk_tokens if request.hit.lease else 0

    def _start_lookup(self, request: KvistRequest, tokens: Sequence[int]) -> None:
        try:
            request.lookup = self._scheduler.lookup_start(
                request.chain.keys(0, len(tokens) // self.chunk_tokens),
                lease_s=self._options.lease_s,
                deadline_s=self._options.lookup_deadline_s,
            )
        except kvist.KvistError as error:
            self._note(error)
            is_behind = error.status == kvist.Status.RESOURCE_EXHAUSTED
            if not is_behind or time.monotonic() - request.asked_at > self._options.lookup_deadline_s:
                request.hit = _MISS

    def drop_hit(self, request: KvistRequest) -> None:
        """Gives the lookup and its lease up. The next hit_tokens asks again."""
        if request.lookup is not None:
            self._scheduler.cancel(request.lookup)
        if request.hit is not None and request.hit.lease:
            self._scheduler.release(request.hit.lease)
        request.lookup = request.hit = None
        request.asked_at = 0.0

    def _is_stale(self, request: KvistRequest) -> bool:
        return request.hit.chunks != 0 and time.monotonic() - request.asked_at > self._options.lease_s / 2

    # ---- load ----

    def start_load(self, request: KvistRequest, first_chunk: int, pages: Sequence[int]) -> bool:
        """Starts copying chunks [first_chunk, all of the hit) into `pages`. False: it couldn't start, compute."""
        assert request.hit is not None
        self.stats.loads += 1
        try:
            request.load = self._worker.load(
                request.hit.lease, pages, first_chunk=first_chunk, chunk_count=request.hit.chunks - first_chunk
            )
        except kvist.KvistError as error:
            self._note(error)
            self._load_failed(request)
            return False
        self._hold(request.load, _Copy(list(pages), is_load=True, awaited=True))
        return True

    def poll_load(self, request: KvistRequest, timeout_s: float = 0.0) -> LoadState:
        """Whether the load has ended; waits for it at most `timeout_s`.

        Failed: compute, in pages of which the caller takes new ones. Those of the load are held until nothing writes to
        them any more.
        """
        result = self._worker.wait(request.load, timeout_s) if timeout_s > 0 else self._worker.poll(request.load)
        if result.status == kvist.Status.PENDING:
            return LoadState.PENDING
        copy = self._copies[request.load]
        copy.awaited = False  # if it still touches its pages, poll follows it to its end
        if result.pages_released:
            self._give_up_pages(request.load)
        request.load = 0
        if result.status != kvist.Status.OK:
            self._load_failed(request)
            return LoadState.FAILED
        self.stats.chunks_loaded += len(copy.pages) * PAGE_TOKENS // self.chunk_tokens
        self.drop_hit(request)
        return LoadState.LOADED

    def _load_failed(self, request: KvistRequest) -> None:
        self.stats.loads_failed += 1
        self.drop_hit(request)
        request.offered = 0  # they may be gone: offer them again

    # ---- store ----

    def store_filled(self, request: KvistRequest, tokens: Sequence[int], computed: int, pages: Sequence[int]) -> None:
        """Starts copying the chunks that have become full: the KV of tokens[:computed] is in `pages`, and final: no drafts."""
        filled = computed // self.chunk_tokens
        if filled <= request.offered or len(self._copies) >= _COPIES_MAX:
            return
        self._extend(request, tokens[:computed])  # the answer's tokens join the chain when their chunk is full
        pages_per_chunk = self.chunk_tokens // PAGE_TOKENS
        source = list(pages[request.offered * pages_per_chunk : filled * pages_per_chunk])
        try:
            op = self._worker.store(request.chain.keys(0, filled), source, first_chunk=request.offered)
        except kvist.KvistError as error:
            self._note(error)
            return  # away or busy: offered again with the next chunk
        self.stats.stores += 1
        request.offered = filled
        self._hold(op, _Copy(source, is_load=False, awaited=False))

    # ---- all copies ----

    def poll(self) -> None:
        """Gives up the pages of copies that have ended. Never waits."""
        for op, copy in list(self._copies.items()):
            if not copy.awaited:
                self._ended(op, copy, self._worker.poll(op))

    def flush(self, timeout_s: float, *, only_orphans: bool = False) -> bool:
        """Waits until no store is under way, at most `timeout_s`, and cancels the rest: no store holds a page then.

        only_orphans: of the stores that hold pages which nobody else uses. Whether there was any.
        """
        end = time.monotonic() + timeout_s
        stores = [
            (op, copy)
            for op, copy in self._copies.items()
            if not copy.is_load and not (only_orphans and all(self._pool.references(page) > 1 for page in copy.pages))
        ]
        for op, copy in stores:
            result = self._worker.wait(op, max(end - time.monotonic(), 0.0))
            if not self._ended(op, copy, result):
                self.stats.stores_cancelled += 1
                self._worker.cancel(op)  # its pages are free now; what was not complete will never be seen
                self._ended(op, copy, self._worker.poll(op))
        return bool(stores)

    def wait_for_pages(self, timeout_s: float) -> None:
        """Waits for a load that nobody awaits any more and that may still write to its pages."""
        for op, copy in list(self._copies.items()):
            if copy.is_load and not copy.awaited:
                self._ended(op, copy, self._worker.wait(op, timeout_s))
                return

    def abandon(self, request: KvistRequest) -> None:
        """The request is gone: ends its lookup, lease and load, whose pages are held as long as need be. Stores go on."""
        self.drop_hit(request)
        if request.load:
            self._worker.cancel(request.load)
            self._copies[request.load].awaited = False
            request.load = 0

    @property
    def copies_under_way(self) -> int:
        return len(self._copies)

    @property
    def connected(self) -> bool:
        return all(client.connection == kvist.Connection.CONNECTED for client in (self._scheduler, self._worker))

    def wait_connected(self, timeout_s: float) -> bool:
        """Until both sessions are served."""
        end = time.monotonic() + timeout_s
        try:
            for client in (self._scheduler, self._worker):
                client.wait_connected(max(end - time.monotonic(), 0.0))
        except kvist.KvistError:
            return False
        return True

    def close(self) -> None:
        """Ends both sessions; returns when nothing touches the pages (bounded)."""
        self.flush(self._options.copy_deadline_s)
        self._worker.close()
        self._scheduler.close()

    def _extend(self, request: KvistRequest, tokens: Sequence[int]) -> None:
        if len(tokens) > request.chained:
            request.chain.append(tokens[request.chained :])
            request.chained = len(tokens)

    def _hold(self, op: int, copy: _Copy) -> None:
        self._pool.share(copy.pages)
        self._copies[op] = copy

    def _give_up_pages(self, op: int) -> None:
        self._pool.release(self._copies.pop(op).pages)

    def _ended(self, op: int, copy: _Copy, result: kvist.Result) -> bool:
        if result.status == kvist.Status.PENDING or not result.pages_released:
            return False
        if not copy.is_load:
            self.stats.chunks_stored += result.chunks_copied
            self.stats.chunks_skipped += result.chunks_skipped
            self.stats.chunks_refused += result.chunks_refused
        self._give_up_pages(op)
        return True

    def _note(self, error: kvist.KvistError) -> None:
        """kvistd away or behind is nothing to talk about; a call that it can't understand is."""
        if error.status in _BUGS:
            self.stats.bugs += 1
            _log.error("kvist: %s", error)
