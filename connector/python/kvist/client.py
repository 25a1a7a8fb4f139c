"""One session with kvistd: the hooks of kvist.h, one method each."""

import contextlib
import ctypes
import enum
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvist import _abi
from kvist.chain import as_u32
from kvist.describe import Memory, Role, Space, Writer, c_memory, c_space, c_text
from kvist.library import check, error, library
from kvist.status import KvistError, Status

NO_PAGE = _abi.NO_PAGE
ALL_LAYERS = _abi.ALL_LAYERS
WHERE_KEYS_MAX = _abi.WHERE_KEYS_MAX
_CALLERS_FAULTS = (Status.INVALID_ARGUMENT, Status.FAILED_PRECONDITION, Status.INTERNAL)


class Connection(enum.IntEnum):
    CONNECTED = 0
    RECONNECTING = 1
    REFUSED = 2


class Tier(enum.IntFlag):
    """Where a chunk can be; in several at once, with copies. ON_SSD: it survives kill -9 and a power cut."""

    IN_DRAM = 1
    ON_SSD = 2
    IN_REMOTE = 4


class ExpectedReuse(enum.IntEnum):
    UNKNOWN = 0
    SOON = 1
    LATER = 2
    NEVER = 3


class StopReason(enum.IntEnum):
    UNKNOWN = 0
    STOP = 1
    LENGTH = 2
    ABORTED = 3
    TOOL_CALL = 4


class After(NamedTuple):
    """GPU memory: what a copy waits for before it touches the pages; kvist_after says what each means."""

    what: int = 0
    stream: int | None = None

    @classmethod
    def on(cls, stream: int) -> "After":
        """What `stream` (torch: .cuda_stream) has been given by now."""
        return cls(1, stream)


NOTHING = After()
LAYERS = After(2)


class Hit(NamedTuple):
    """How far a prompt can be resumed, in chunks, the lease that keeps them there, and how many of them are on their way from a slower tier
    (a load waits for those). A status other than OK means a miss, and why."""

    chunks: int
    lease: int
    status: Status = Status.OK
    coming: int = 0


class Result(NamedTuple):
    """Of a copy; `kvist_result` says what each field means. `status` is PENDING while it is under way."""

    status: Status
    layers: int
    chunks_copied: int
    chunks_skipped: int
    chunks_refused: int
    pages_released: bool


def _us(seconds: float) -> int:
    return int(seconds * 1e6)


def _count(keys: bytes) -> int:
    """How many keys these are. A key that is cut is a mistake of the caller's, and not a shorter prompt."""
    count, rest = divmod(len(keys), _abi.KEY_BYTES)
    if rest:
        raise ValueError(f"keys have {len(keys)} bytes: each has {_abi.KEY_BYTES}")
    return count


_Tiers = ctypes.c_char * WHERE_KEYS_MAX  # once: an array's type takes 20 us to make
_STATUS = tuple(Status)  # by number: quicker than Status(number)


class Client:
    """A `kvist_client`. A context manager; any number of threads may use it.

    Keys are bytes, 32 for each (`Chain.keys`); pages are page numbers, fastest as array("I"). Times are in seconds; 0 is the default.
    Calls raise KvistError when they could not do what was asked, but a lookup never fails for the daemon's sake: it misses.
    """

    def __init__(
        self,
        *,
        role: Role,
        instance: str,
        space: Space,
        rank: int = 0,
        memory: Memory | None = None,
        socket: str | None = None,
        deadline_s: float = 0.0,
        connect_timeout_s: float = 0.0,
        ask_again: bool = False,
        by_layer: bool = False,
    ) -> None:
        """Opens the session; succeeds also while the daemon is away, and everything is a miss until it is there. With `ask_again` a
        daemon that refuses (another version, another user's) is like one that is away; wait_connected says why. `by_layer`: loads of what this client looks up are waited
        for layer by layer, so what is on disk of them is read so, too."""
        self._client = ctypes.c_void_p()
        self._lib = library()
        self.space = space
        writer = Writer(memory.write_page) if memory is not None else None
        options = _abi.Options(
            struct_size=ctypes.sizeof(_abi.Options),
            socket=c_text("socket", socket) if socket is not None else None,
            instance=c_text("instance", instance),
            role=role,
            rank=rank,
            space=ctypes.pointer(c_space(space)),
            memory=ctypes.pointer(c_memory(memory, writer)) if memory is not None else None,
            deadline_us=_us(deadline_s),
            connect_timeout_us=_us(connect_timeout_s),
            ask_again=ask_again,
            by_layer=by_layer,
        )
        status = self._lib.connect(options, self._client)
        if status != Status.OK:
            raise error(status) from (writer.error if writer is not None else None)

    def close(self) -> None:
        """Ends the session: what is in flight is cancelled; returns when nothing touches the pages, or after the default deadline."""
        client, self._client = self._client, ctypes.c_void_p()
        if client:
            self._lib.disconnect(client)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_client", None):
            self.close()

    @property
    def connection(self) -> Connection:
        return Connection(self._lib.connection_state(self._client, None))

    @property
    def space_digest(self) -> bytes:
        """The 32 bytes of the last Welcome; zeros before the first."""
        digest = (ctypes.c_uint8 * 32)()
        self._lib.connection_state(self._client, digest)
        return bytes(digest)

    def wait_connected(self, timeout_s: float) -> None:
        check(self._lib.wait_connected(self._client, _us(timeout_s)))

    # ---- lookup ----

    def lookup(self, keys: bytes, *, have: int = 0, lease_s: float = 0.0, deadline_s: float = 0.0) -> Hit:
        """have: so many chunks the engine has itself; they aren't leased, and a load begins behind them."""
        hit = _abi.Hit()
        status = self._lib.lookup(self._client, keys, _count(keys), have, _us(lease_s), _us(deadline_s), hit)
        return self._hit(status, hit)

    @contextlib.contextmanager
    def leased(self, keys: bytes, *, lease_s: float, deadline_s: float = 0.0) -> Iterator[Hit]:
        """A lookup whose lease ends with the block."""
        hit = self.lookup(keys, lease_s=lease_s, deadline_s=deadline_s)
        try:
            yield hit
        finally:
            if hit.lease:
                self.release(hit.lease)

    def lookup_start(self, keys: bytes, *, have: int = 0, lease_s: float = 0.0, deadline_s: float = 0.0) -> int:
        """Asks; lookup_result hears the answer. Never waits. Raises when it could not be asked, which is a miss."""
        op = ctypes.c_uint64()
        check(self._lib.lookup_start(self._client, keys, _count(keys), have, _us(lease_s), _us(deadline_s), op))
        return op.value

    def lookup_result(self, op: int, timeout_s: float = 0.0) -> Hit | None:
        """None: not known yet. Anything else ends the op."""
        hit = _abi.Hit()
        if timeout_s > 0:
            status = self._lib.lookup_result(self._client, op, _us(timeout_s), hit)
        else:
            status = self._lib.lookup_poll(self._client, op, 0, hit)
        return None if status == Status.PENDING else self._hit(status, hit)

    def _hit(self, status: int, hit: _abi.Hit) -> Hit:
        if status in _CALLERS_FAULTS:
            raise error(status)
        return Hit(hit.chunks, hit.lease, _STATUS[status], hit.coming)

    def where_start(self, keys: bytes, *, group: int = 0, deadline_s: float = 0.0) -> int:
        """Asks where these chunks (WHERE_KEYS_MAX at most) are now, each by itself; where_result hears it. Never waits, and isn't a use of them."""
        op = ctypes.c_uint64()
        check(self._lib.where_start(self._client, keys, _count(keys), group, _us(deadline_s), op))
        return op.value

    def where_result(self, op: int, count: int, timeout_s: float = 0.0) -> bytes | None:
        """A byte of Tier for each of the `count` keys. None: not known yet. Anything else ends the op, also an error."""
        tiers = _Tiers()
        if timeout_s > 0:
            status = self._lib.where_result(self._client, op, _us(timeout_s), tiers, count)
        else:
            status = self._lib.where_poll(self._client, op, 0, tiers, count)
        if status == Status.PENDING:
            return None
        check(status)
        return tiers.raw[:count]

    def first_needed(self, group: int, chunks: int) -> int:
        """Which chunks of a hit a group needs: [this, chunks)."""
        return self._lib.first_needed(self._client, group, chunks)

    def release(self, lease: int) -> None:
        check(self._lib.release(self._client, lease))

    # ---- load, store ----

    def load(
        self,
        lease: int,
        pages: array | Iterable[int],
        *,
        chunk_count: int,
        first_chunk: int = 0,
        group: int = 0,
        first_layer: int = 0,
        layer_count: int = 0,
        deadline_s: float = 0.0,
        after: After = NOTHING,
    ) -> int:
        """Starts copying chunks into pages; until the op has ended with pages_released the pages belong to the daemon."""
        address, count, _alive = _table(pages)
        args = _abi.LoadArgs(
            ctypes.sizeof(_abi.LoadArgs),
            lease,
            first_chunk,
            chunk_count,
            address,
            count,
            first_layer,
            layer_count,
            _us(deadline_s),
            group,
            *after,
        )
        op = ctypes.c_uint64()
        check(self._lib.load(self._client, args, op))
        return op.value

    def store(
        self,
        keys: bytes,
        pages: array | Iterable[int],
        *,
        first_chunk: int = 0,
        group: int = 0,
        deadline_s: float = 0.0,
        after: After = NOTHING,
    ) -> int:
        """Starts copying pages into new slots; the pages must stay as they are until the op has ended or cancel has returned."""
        address, count, _alive = _table(pages)
        args = _abi.StoreArgs(
            ctypes.sizeof(_abi.StoreArgs), keys, _count(keys), first_chunk, address, count, _us(deadline_s), group, *after
        )
        op = ctypes.c_uint64()
        check(self._lib.store(self._client, args, op))
        return op.value

    def wait(self, op: int, timeout_s: float, *, layers: int = ALL_LAYERS) -> Result:
        """The result as it is when the first `layers` layers are there, the op has ended, or the time is over (then PENDING)."""
        result = _abi.Result(ctypes.sizeof(_abi.Result))
        return self._result(self._lib.wait(self._client, op, layers, _us(timeout_s), result), result)

    def poll(self, op: int) -> Result:
        """`wait` without waiting: a read of shared memory."""
        result = _abi.Result(ctypes.sizeof(_abi.Result))
        return self._result(self._lib.poll(self._client, op, result), result)

    def _result(self, status: int, result: _abi.Result) -> Result:
        if status == Status.INVALID_ARGUMENT:
            raise error(status)
        return Result(
            _STATUS[result.status],
            result.layers,
            result.chunks_copied,
            result.chunks_skipped,
            result.chunks_refused,
            result.pages_released != 0,
        )

    def cancel(self, op: int) -> None:
        """Gives an op up. A store's pages are free when this returns; any copy is still asked for until its end."""
        check(self._lib.cancel(self._client, op))

    def wait_on_stream(self, op: int, stream: int, *, layers: int = ALL_LAYERS) -> None:
        """GPU memory: has `stream` (torch: .cuda_stream) wait until the first `layers` layers are there, or the op has ended, however."""
        check(self._lib.wait_on_stream(self._client, op, layers, stream))

    def pages_ready(self, op: int, layers: int, stream: int) -> None:
        """GPU memory, of an op after LAYERS: the pages of the first `layers` layers are ready once `stream` has done what it was given."""
        check(self._lib.pages_ready(self._client, op, layers, stream))

    def bus_busy(self, for_s: float) -> None:
        """GPU memory: the engine needs the bus to its GPU for so long (0: no more); stores wait, 100 ms in a row at most, loads don't."""
        check(self._lib.bus_busy(self._client, round(for_s * 1e6)))

    # ---- pins, hints, private allocations ----

    def flush(self, *, deadline_s: float) -> int:
        """Waits until all that is stored of this space survives kvistd; how many chunks that are."""
        chunks = ctypes.c_uint32()
        check(self._lib.flush(self._client, _us(deadline_s), chunks))
        return chunks.value

    def pin(self, keys: bytes, *, deadline_s: float = 0.0) -> int:
        """How many chunks are pinned."""
        chunks = ctypes.c_uint32()
        check(self._lib.pin(self._client, keys, _count(keys), _us(deadline_s), chunks))
        return chunks.value

    def unpin(self, keys: bytes, *, deadline_s: float = 0.0) -> None:
        check(self._lib.unpin(self._client, keys, _count(keys), _us(deadline_s)))

    def hint(
        self,
        keys: bytes,
        *,
        session_ended: bool = False,
        expected_reuse: ExpectedReuse = ExpectedReuse.UNKNOWN,
        stop_reason: StopReason = StopReason.UNKNOWN,
    ) -> None:
        args = _abi.HintArgs(ctypes.sizeof(_abi.HintArgs), session_ended, expected_reuse, stop_reason)
        check(self._lib.hint(self._client, keys, _count(keys), args))

    def report_prefill(self, first_token: int, token_count: int, *, took_s: float) -> None:
        """Computing the KV of these tokens of one prompt took so long, and nothing else was computed meanwhile: kvistd learns by it when a load
        from disk isn't worth it (ssd.gate in its configuration)."""
        check(self._lib.report_prefill(self._client, first_token, token_count, round(took_s * 1e6)))

    def alloc(self, chunk_count: int, *, group: int = 0, deadline_s: float = 0.0) -> int:
        allocation = ctypes.c_uint64()
        check(self._lib.alloc(self._client, group, chunk_count, _us(deadline_s), allocation))
        return allocation.value

    def free(self, allocation: int) -> None:
        check(self._lib.free(self._client, allocation))

    def swap_out(self, allocation: int, pages: array | Iterable[int], **where) -> int:
        """Starts copying pages out; `where`: chunk_count, first_chunk, group, first_layer, layer_count, deadline_s, after."""
        return self._swap(self._lib.swap_out, allocation, pages, **where)

    def swap_in(self, allocation: int, pages: array | Iterable[int], **where) -> int:
        """Starts copying pages back in; arguments as of swap_out."""
        return self._swap(self._lib.swap_in, allocation, pages, **where)

    def _swap(
        self,
        swap,
        allocation: int,
        pages: array | Iterable[int],
        *,
        chunk_count: int,
        first_chunk: int = 0,
        group: int = 0,
        first_layer: int = 0,
        layer_count: int = 0,
        deadline_s: float = 0.0,
        after: After = NOTHING,
    ) -> int:
        address, count, _alive = _table(pages)
        args = _abi.SwapArgs(
            ctypes.sizeof(_abi.SwapArgs),
            allocation,
            group,
            first_chunk,
            chunk_count,
            address,
            count,
            first_layer,
            layer_count,
            _us(deadline_s),
            *after,
        )
        op = ctypes.c_uint64()
        check(swap(self._client, args, op))
        return op.value


def _table(pages: array | Iterable[int]) -> tuple[int, int, array]:
    """Address and length of a page table, and what keeps it alive until the call has copied it."""
    pages = as_u32(pages)
    return (*pages.buffer_info(), pages)


__all__ = [
    "ALL_LAYERS",
    "LAYERS",
    "NO_PAGE",
    "WHERE_KEYS_MAX",
    "After",
    "Client",
    "Connection",
    "ExpectedReuse",
    "Hit",
    "KvistError",
    "Result",
    "StopReason",
    "Tier",
]
