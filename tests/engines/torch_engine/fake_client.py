"""kvist.Client in this process, unpleasant where a test asks for it: copies by the description of the memory, slowly, late,
or not at all."""

import dataclasses
import mmap

from kvist import Connection, Hit, KvistError, Result, Role, Status


@dataclasses.dataclass
class Behaviour:
    away: bool = False
    polls_until_answer: int = 0  # of a lookup
    polls_until_end: int = 0  # of a copy
    load_status: Status = Status.OK
    polls_until_release: int = 0  # calls of any kind; a load that ended badly or was cancelled writes to its pages as long
    refuse_loads: bool = False
    lookups_refused: int = 0  # of the next ones: the fake is behind


@dataclasses.dataclass
class Observed:
    probes: int = 0
    loads: int = 0
    stores: int = 0
    cancelled: int = 0
    changed_under_store: int = 0  # stores whose pages changed before they had ended


@dataclasses.dataclass
class _Op:
    pages: list[int]
    keys: list[bytes]
    is_load: bool
    before: bytes = b""  # store: content when it began
    polls: int = 0
    status: Status | None = None  # once it has ended
    polls_late: int = 0
    is_released: bool = False


class FakeKvist:
    def __init__(self) -> None:
        self.behaviour, self.observed = Behaviour(), Observed()
        self.chunks: dict[bytes, bytes] = {}
        self.leases: dict[int, list[bytes]] = {}
        self.ops: dict[int, _Op] = {}
        self._lookups: dict[int, tuple[list[bytes], int]] = {}
        self._last = 0

    def client(self, *, role: Role, space, memory=None, **_) -> "FakeKvist":
        """As kvist.Client(...): one object for both roles."""
        self._space = space
        if role == Role.WORKER:
            self._memory = memory
            self._map = mmap.mmap(memory.memfds[0], 0)
            last = memory.groups[0].pages - 1
            for layer in range(len(memory.layers)):
                for page in (0, last):
                    pattern = bytes((layer * 31 + page * 7 + at) % 251 for at in range(self._page_bytes))
                    memory.write_page(layer, page, memoryview(pattern))
                    assert b"".join(self._map[start:end] for start, end in self._places(page, layer)) == pattern
                    self.observed.probes += 1
        return self

    @property
    def _page_bytes(self) -> int:
        return self._space.groups[0].segments * self._space.groups[0].segment_bytes

    def _places(self, page: int, layer: int):
        group, pages = self._space.groups[0], self._memory.groups[0]
        ((count, stride),) = pages.dims
        for segment in range(count):
            start = self._memory.layers[layer][1] + page * pages.page_stride + segment * stride
            yield start, start + group.segment_bytes

    def _read(self, pages: list[int]) -> bytes:
        layers = range(len(self._memory.layers))
        return b"".join(
            self._map[start:end] for page in pages for layer in layers for start, end in self._places(page, layer)
        )

    def _write(self, pages: list[int], content: bytes) -> None:
        at = 0
        for page in pages:
            for layer in range(len(self._memory.layers)):
                for start, end in self._places(page, layer):
                    self._map[start:end] = content[at : at + end - start]
                    at += end - start

    def _write_late(self) -> None:
        """What the daemon does meanwhile, whoever is asked for: loads that ended badly leave half of it, or of something else."""
        for copy in self.ops.values():
            if copy.is_load and copy.status not in (None, Status.OK) and not copy.is_released:
                self._write(copy.pages, b"\xff" * len(copy.pages) * len(self._memory.layers) * self._page_bytes)
                copy.polls_late += 1
                copy.is_released = copy.polls_late > self.behaviour.polls_until_release

    def _check_here(self) -> None:
        self._write_late()
        if self.behaviour.away:
            raise KvistError(Status.UNAVAILABLE, "the fake is away")

    def _new_id(self) -> int:
        self._last += 1
        return self._last

    # ---- what the engine calls ----

    connection = Connection.CONNECTED

    def wait_connected(self, timeout_s: float) -> None:
        self._check_here()

    def lookup_start(self, keys: bytes, *, lease_s: float = 0.0, deadline_s: float = 0.0) -> int:
        self._check_here()
        if self.behaviour.lookups_refused > 0:
            self.behaviour.lookups_refused -= 1
            raise KvistError(Status.RESOURCE_EXHAUSTED, "the fake is behind")
        op = self._new_id()
        self._lookups[op] = ([keys[at : at + 32] for at in range(0, len(keys), 32)], 0)
        return op

    def lookup_result(self, op: int, timeout_s: float = 0.0) -> Hit | None:
        self._write_late()
        keys, polls = self._lookups[op]
        if polls < self.behaviour.polls_until_answer:
            self._lookups[op] = (keys, polls + 1)
            return None
        del self._lookups[op]
        found = next((at for at, key in enumerate(keys) if key not in self.chunks), len(keys))
        if found == 0:
            return Hit(0, 0)
        lease = self._new_id()
        self.leases[lease] = keys[:found]
        return Hit(found, lease)

    def release(self, lease: int) -> None:
        self._write_late()
        del self.leases[lease]

    def load(self, lease: int, pages, *, chunk_count: int, first_chunk: int = 0, **_) -> int:
        self._check_here()
        if self.behaviour.refuse_loads:
            raise KvistError(Status.RESOURCE_EXHAUSTED, "the fake has no room")
        assert len(pages) * self._space.page_tokens == chunk_count * self._space.chunk_tokens
        op = self._new_id()
        self.ops[op] = _Op(list(pages), self.leases[lease][first_chunk : first_chunk + chunk_count], True)
        assert len(self.ops[op].keys) == chunk_count
        self.observed.loads += 1
        return op

    def store(self, keys: bytes, pages, *, first_chunk: int = 0, **_) -> int:
        self._check_here()
        op, all_keys = self._new_id(), [keys[at : at + 32] for at in range(0, len(keys), 32)]
        assert len(pages) * self._space.page_tokens == (len(all_keys) - first_chunk) * self._space.chunk_tokens > 0
        self.ops[op] = _Op(list(pages), all_keys[first_chunk:], False, self._read(list(pages)))
        self.observed.stores += 1
        return op

    def wait(self, op: int, timeout_s: float, **_) -> Result:
        return self.poll(op)

    def poll(self, op: int) -> Result:
        copy = self.ops[op]
        if copy.status is None and copy.polls >= self.behaviour.polls_until_end:
            copy.status = self.behaviour.load_status if copy.is_load else Status.OK
            if not copy.is_load:
                self._finish_store(copy)
            elif copy.status == Status.OK:
                self._write(copy.pages, b"".join(self.chunks[key] for key in copy.keys))
        copy.polls += 1
        if copy.status is None:
            return Result(Status.PENDING, 0, 0, 0, 0, False)
        self._write_late()
        if copy.is_load and copy.status != Status.OK and not copy.is_released:
            return Result(copy.status, 0, 0, 0, 0, False)
        del self.ops[op]
        return Result(copy.status, 0, len(copy.keys), 0, 0, True)

    def _finish_store(self, copy: _Op) -> None:
        content = self._read(copy.pages)
        self.observed.changed_under_store += content != copy.before
        size = len(content) // len(copy.keys)
        for at, key in enumerate(copy.keys):
            self.chunks[key] = content[at * size : (at + 1) * size]

    def cancel(self, op: int) -> None:
        if self._lookups.pop(op, None) is not None:
            return
        copy = self.ops[op]
        if copy.status is None:
            self.observed.cancelled += 1
            copy.status = Status.CANCELLED
            if not copy.is_load:
                self.observed.changed_under_store += self._read(copy.pages) != copy.before

    def close(self) -> None:
        pass
