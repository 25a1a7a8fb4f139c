"""The package's client against a real kvistd: every method, its errors, and a daemon that is absent, standing, killed and
back."""

import fcntl
import mmap
import os
import subprocess
import sys
import threading
import time

import kvist
import pytest
from kvist import Client, Connection, Group, GroupKind, GroupPages, Hit, KvistError, Memory, Role, Space, Status, Tier
from kvist_daemon import Daemon

LAYERS, PAGES, SEGMENT = 3, 32, 64
PAGE_TOKENS, CHUNK_TOKENS = 4, 8
PER_CHUNK = CHUNK_TOKENS // PAGE_TOKENS
PAGE = 2 * SEGMENT
SPACE = Space("model", "bf16", PAGE_TOKENS, CHUNK_TOKENS, (Group(LAYERS, SEGMENT, segments=2),), revision="r1")


class Pages:
    """Paged memory of one group: [layer][K of all pages, V of all pages][page], so that a page is two segments far apart."""

    def __init__(self, *, in_memfd: bool = True, pages: int = PAGES) -> None:
        self.pages, self.size = pages, LAYERS * pages * PAGE
        self.fd = os.memfd_create("client_test", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.map = mmap.mmap(self.fd, self.size)
        self.in_memfd = in_memfd

    def _segments(self, layer: int, page: int):
        for which in (0, 1):
            start = ((layer * 2 + which) * self.pages + page) * SEGMENT
            yield slice(start, start + SEGMENT)

    def write(self, layer: int, page: int, content) -> None:
        content = bytes(content)
        for at, place in enumerate(self._segments(layer, page)):
            self.map[place] = content[at * SEGMENT : (at + 1) * SEGMENT]

    def fill(self, page: int, seed: int) -> None:
        for layer in range(LAYERS):
            self.write(layer, page, bytes((seed * 37 + layer * 11 + at) % 256 for at in range(PAGE)))

    def read(self, page: int, layers=range(LAYERS)) -> bytes:
        return b"".join(self.map[place] for layer in layers for place in self._segments(layer, page))

    def describe(self, **changed) -> Memory:
        import ctypes

        groups = (GroupPages(self.pages, SEGMENT, dims=((2, self.pages * SEGMENT),)),)
        place = {"memfds": (self.fd,)}
        if not self.in_memfd:
            place = {"process_regions": ((ctypes.addressof(ctypes.c_char.from_buffer(self.map)), self.size),)}
        layers = [(0, layer * self.pages * PAGE) for layer in range(LAYERS)]
        return Memory(**({"layers": layers, "groups": groups, "write_page": self.write} | place | changed))


def keys_of(chunks: int, seed: int = 0) -> bytes:
    chain = kvist.Chain(CHUNK_TOKENS, salt=str(seed))
    chain.append(range(chunks * CHUNK_TOKENS))
    return chain.keys()


def scheduler_of(daemon: Daemon, **options) -> Client:
    return Client(
        **(
            {"role": Role.SCHEDULER, "instance": "test", "space": SPACE, "socket": daemon.socket, "deadline_s": 10.0}
            | options
        )
    )


def worker_of(daemon: Daemon, pages: Pages, **options) -> Client:
    return scheduler_of(daemon, **({"role": Role.WORKER, "memory": pages.describe()} | options))


@pytest.fixture
def pages():
    return Pages()


@pytest.fixture
def scheduler(daemon):
    with scheduler_of(daemon) as client:
        yield client


@pytest.fixture
def worker(daemon, pages):
    with worker_of(daemon, pages) as client:
        yield client


def ended(client: Client, op: int, limit_s: float = 20.0) -> kvist.Result:
    """The result once nothing touches the pages any more."""
    end = time.monotonic() + limit_s
    while True:
        result = client.wait(op, 1.0)
        if result.status != Status.PENDING and result.pages_released:
            return result
        assert time.monotonic() < end, result


def stored(worker: Client, pages: Pages, keys: bytes, first_page: int = 0) -> list[bytes]:
    """Fills and stores as many pages as the keys have, from `first_page` on; their content."""
    count = len(keys) // 32 * PER_CHUNK
    for page in range(first_page, first_page + count):
        pages.fill(page, page)
    assert ended(worker, worker.store(keys, range(first_page, first_page + count))).status == Status.OK
    return [pages.read(page) for page in range(first_page, first_page + count)]


# ---- the way of bytes ----


@pytest.mark.parametrize("in_memfd", [True, False])
def test_what_was_stored_is_loaded(daemon, scheduler, in_memfd):
    pages, keys = Pages(in_memfd=in_memfd), keys_of(3)
    with worker_of(daemon, pages) as worker:
        content = stored(worker, pages, keys)
        hit = scheduler.lookup(keys + keys_of(1, seed=9), lease_s=30.0)
        assert (hit.chunks, hit.status) == (3, Status.OK)
        result = ended(worker, worker.load(hit.lease, range(10, 16), chunk_count=3))
        assert (result.status, result.layers, result.chunks_copied) == (Status.OK, LAYERS, 3)
        assert [pages.read(page) for page in range(10, 16)] == content
        scheduler.release(hit.lease)
    daemon.wait_idle()


def test_a_store_says_what_it_did(worker, pages):
    keys = keys_of(4)
    stored(worker, pages, keys[:64])
    result = ended(worker, worker.store(keys, range(8)))
    assert (result.status, result.chunks_copied, result.chunks_skipped, result.chunks_refused) == (Status.OK, 2, 2, 0)
    result = ended(worker, worker.store(keys_of(2, seed=1), [1, 2], first_chunk=1))  # its parent is not there
    assert (result.chunks_copied, result.chunks_refused) == (0, 1)


def test_loads_parts(worker, scheduler, pages):
    keys = keys_of(3)
    content = stored(worker, pages, keys)
    with scheduler.leased(keys, lease_s=30.0) as hit:
        for page in range(10, 14):
            pages.fill(page, 100)
        before = pages.read(10)
        table = [kvist.NO_PAGE, 11, 12, kvist.NO_PAGE]
        assert ended(worker, worker.load(hit.lease, table, first_chunk=1, chunk_count=2)).status == Status.OK
        assert [pages.read(page) for page in (10, 11, 12, 13)] == [before, content[3], content[4], before]
        op = worker.load(hit.lease, [20, 21], chunk_count=1, first_layer=1, layer_count=1)
        assert worker.wait(op, 20.0, layers=1).layers == 1
        assert pages.read(20, [1]) == content[0][PAGE : 2 * PAGE]
        assert pages.read(20, [0, 2]) == bytes(2 * PAGE)


def test_a_lease_ends_with_its_block(daemon, worker, scheduler, pages):
    keys = keys_of(1)
    stored(worker, pages, keys)
    with pytest.raises(ZeroDivisionError), scheduler.leased(keys, lease_s=60.0) as hit:
        daemon.wait_status(lambda status: status["leases"] == 1)
        1 / 0  # noqa: B018
    daemon.wait_idle()
    result = ended(worker, worker.load(hit.lease, [1, 2], chunk_count=1))
    assert result.status == Status.ABORTED
    with scheduler.leased(keys_of(1, seed=5), lease_s=60.0) as hit:
        assert hit == Hit(0, 0, Status.OK)
    assert scheduler.lookup(keys) == Hit(1, 0, Status.OK)  # only asked


def test_lookup_in_two_halves(daemon, worker, scheduler, pages):
    keys = keys_of(2)
    stored(worker, pages, keys)
    op = scheduler.lookup_start(keys, lease_s=30.0)
    hit = scheduler.lookup_result(op, 20.0)
    assert (hit.chunks, hit.status) == (2, Status.OK)
    scheduler.release(hit.lease)
    with pytest.raises(KvistError, match="no lookup under way"):
        scheduler.lookup_result(op)
    daemon.pause()
    asked, late, gone = (scheduler.lookup_start(keys, lease_s=30.0, deadline_s=deadline) for deadline in (60.0, 0.05, 60.0))
    assert scheduler.lookup_result(asked) is None
    assert scheduler.lookup_result(asked, 0.01) is None
    assert scheduler.lookup_result(late, 20.0) == Hit(0, 0, Status.DEADLINE_EXCEEDED)
    scheduler.cancel(gone)
    daemon.resume()
    assert scheduler.lookup_result(asked, 20.0).chunks == 2
    scheduler.release(0)  # nothing
    scheduler.cancel(gone)  # over already
    assert scheduler.lookup_result(scheduler.lookup_start(b""), 1.0) == Hit(0, 0, Status.OK)


def test_where_chunks_are(daemon, worker, scheduler, pages):
    keys = keys_of(4)
    stored(worker, pages, keys[:64])
    for client in (scheduler, worker):
        assert client.where_result(client.where_start(keys), 4, 20.0) == bytes([Tier.IN_DRAM] * 2 + [0] * 2)
    op = scheduler.where_start(keys)
    assert scheduler.where_result(op, 2, 20.0) == bytes([Tier.IN_DRAM] * 2)  # the first of them
    with pytest.raises(KvistError, match="no question where chunks are under way"):
        scheduler.where_result(op, 2)
    with pytest.raises(KvistError, match="asked of 1 to 192 at once"):
        scheduler.where_start(keys_of(1) * (kvist.WHERE_KEYS_MAX + 1))
    with pytest.raises(KvistError, match="group is 1"):
        scheduler.where_start(keys, group=1)
    with pytest.raises(ValueError, match="keys have 33 bytes"):
        scheduler.where_start(keys[:33])
    daemon.pause()
    asked, late, gone = (scheduler.where_start(keys, deadline_s=deadline) for deadline in (60.0, 0.05, 60.0))
    assert scheduler.where_result(asked, 4) is None
    with pytest.raises(KvistError, match="DEADLINE_EXCEEDED"):
        scheduler.where_result(late, 4, 20.0)
    scheduler.cancel(gone)
    daemon.kill()
    with pytest.raises(KvistError, match="UNAVAILABLE"):
        scheduler.where_result(asked, 4, 20.0)


def test_cancelled_stores_give_their_pages_back_at_once(daemon, worker, scheduler, pages):
    keys = keys_of(2)
    worker.wait_connected(20.0)
    daemon.pause()
    op = worker.store(keys, range(4))
    assert worker.poll(op).status == Status.PENDING
    assert worker.wait(op, 0.01).status == Status.PENDING
    worker.cancel(op)
    for page in range(4):
        pages.fill(page, 200)  # ours again
    result = worker.poll(op)
    assert (result.status, result.pages_released) == (Status.CANCELLED, True)
    daemon.resume()
    daemon.wait_idle()
    assert scheduler.lookup(keys).chunks == 0


def test_a_late_load_says_when_its_pages_are_free(daemon, worker, scheduler, pages):
    keys = keys_of(2)
    content = stored(worker, pages, keys)
    hit = scheduler.lookup(keys, lease_s=60.0)
    daemon.pause()
    op = worker.load(hit.lease, range(10, 14), chunk_count=2, deadline_s=0.02)
    result = worker.wait(op, 20.0)
    assert (result.status, result.pages_released) == (Status.DEADLINE_EXCEEDED, False)
    daemon.resume()
    assert ended(worker, op).pages_released
    with pytest.raises(KvistError, match="no such operation"):
        worker.poll(op)
    scheduler.release(hit.lease)
    assert [pages.read(page) for page in range(4)] == content


def test_private_allocations(worker, pages):
    for page in range(4):
        pages.fill(page, page)
    content = [pages.read(page) for page in range(4)]
    allocation = worker.alloc(2)
    assert ended(worker, worker.swap_in(allocation, range(4), chunk_count=2)).status == Status.FAILED_PRECONDITION
    assert ended(worker, worker.swap_out(allocation, range(4), chunk_count=2)).status == Status.OK
    assert ended(worker, worker.swap_in(allocation, range(20, 24), chunk_count=2)).status == Status.OK
    assert [pages.read(page) for page in range(20, 24)] == content
    op = worker.swap_in(allocation, [30, kvist.NO_PAGE], chunk_count=1, first_chunk=1, first_layer=2, layer_count=1)
    assert ended(worker, op).status == Status.OK
    assert pages.read(30) == bytes(2 * PAGE) + content[2][2 * PAGE :]
    worker.free(allocation)
    worker.free(allocation)  # ignored
    assert ended(worker, worker.swap_in(allocation, range(4), chunk_count=2)).status == Status.ABORTED
    with pytest.raises(KvistError, match="1 to 4096 chunks, not 5000") as refused:
        worker.alloc(5000)
    assert refused.value.status == Status.INVALID_ARGUMENT
    with pytest.raises(KvistError) as refused:
        for _ in range(5):  # 16,384 / (1 + ranks) chunks are the most at once
            worker.alloc(4096)
    assert refused.value.status == Status.RESOURCE_EXHAUSTED


def test_flush_says_why_nothing_survives(daemon, worker, scheduler, pages):
    stored(worker, pages, keys_of(1))
    with pytest.raises(KvistError, match="no SSD tier"):
        scheduler.flush(deadline_s=10)


def test_pins_and_hints(daemon, worker, scheduler, pages):
    keys = keys_of(3)
    stored(worker, pages, keys)
    assert scheduler.pin(keys) == 3
    assert daemon.ctl("status")["pins"] == 1
    scheduler.unpin(keys)
    scheduler.unpin(keys)  # ignored
    assert daemon.ctl("status")["pins"] == 0
    assert scheduler.pin(keys_of(1, seed=3)) == 0
    scheduler.hint(keys, session_ended=True, stop_reason=kvist.StopReason.TOOL_CALL)
    scheduler.hint(keys, expected_reuse=kvist.ExpectedReuse.SOON)
    scheduler.report_prefill(0, 2048, took_s=0.25)
    with pytest.raises(KvistError, match="took_us is 0"):
        scheduler.report_prefill(0, 2048, took_s=0)
    with pytest.raises(KvistError, match="expected_reuse is 7"):
        scheduler.hint(keys, expected_reuse=7)


def test_hybrid_spaces_say_what_a_group_needs(daemon):
    groups = (
        Group(LAYERS, SEGMENT),
        Group(1, SEGMENT, kind=GroupKind.WINDOW, window_tokens=CHUNK_TOKENS + 1),
        Group(1, 256, kind=GroupKind.STATE),
    )
    space = Space("hybrid", "bf16", PAGE_TOKENS, CHUNK_TOKENS, groups)
    with scheduler_of(daemon, space=space, instance="hybrid") as client:
        client.wait_connected(20.0)
        assert [client.first_needed(group, 5) for group in range(3)] == [0, 4, 4]


def test_many_threads_share_a_client(worker, scheduler, pages):
    keys = keys_of(4)
    content = stored(worker, pages, keys)
    failures = []

    def work(index: int) -> None:
        try:
            table = range(8 + 4 * index, 12 + 4 * index)
            for _ in range(50):
                with scheduler.leased(keys, lease_s=60.0) as hit:
                    assert hit.chunks == 4
                    assert ended(worker, worker.load(hit.lease, table, chunk_count=2)).status == Status.OK
                    assert [pages.read(page) for page in table] == content[:4]
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not failures


# ---- wrong calls ----


def test_wrong_calls_say_what_is_wrong(worker, scheduler, pages):
    keys = keys_of(2)
    stored(worker, pages, keys)
    with scheduler.leased(keys, lease_s=60.0) as hit:
        for call, status, why in (
            (lambda: worker.load(0, [1, 2], chunk_count=1), Status.INVALID_ARGUMENT, "lease is 0"),
            (
                lambda: worker.load(hit.lease, [1, 2, 3], chunk_count=1),
                Status.INVALID_ARGUMENT,
                "page_count is 3, 1 chunks have 2",
            ),
            (lambda: worker.load(hit.lease, [1, 2], chunk_count=1, group=1), Status.INVALID_ARGUMENT, "group is 1"),
            (lambda: worker.load(hit.lease, [1, 2], chunk_count=1, first_layer=3), Status.INVALID_ARGUMENT, r"layers \[3"),
            (lambda: scheduler.load(hit.lease, [1, 2], chunk_count=1), Status.FAILED_PRECONDITION, "from a worker"),
            (lambda: scheduler.store(keys, range(4)), Status.FAILED_PRECONDITION, "from a worker"),
            (lambda: worker.store(keys, range(4), first_chunk=2), Status.INVALID_ARGUMENT, "nothing to store"),
            (lambda: worker.swap_out(0, range(4), chunk_count=2), Status.INVALID_ARGUMENT, "allocation is 0"),
            (lambda: worker.alloc(1, group=4), Status.INVALID_ARGUMENT, "group is 4"),
            (lambda: worker.poll(12345), Status.INVALID_ARGUMENT, "no such operation"),
            (lambda: worker.wait(12345, 1.0), Status.INVALID_ARGUMENT, "no such operation"),
        ):
            with pytest.raises(KvistError, match=why) as refused:
                call()
            assert refused.value.status == status
            assert str(refused.value) == f"{status.name}: {refused.value.message}"
        assert ended(worker, worker.load(hit.lease, [1, PAGES], chunk_count=1)).status == Status.INVALID_ARGUMENT
        assert ended(worker, worker.load(hit.lease, [1, 2], chunk_count=1, first_chunk=2)).status == Status.INVALID_ARGUMENT
    for call in (
        lambda: scheduler.lookup(keys[:-1]),
        lambda: scheduler.lookup_start(keys[:40]),
        lambda: worker.store(keys[:63], [0, 1]),
        lambda: scheduler.pin(b"key"),
        lambda: scheduler.hint(keys + b"\0"),
    ):
        with pytest.raises(ValueError, match="each has 32"):
            call()
    for table in ([-1, 2], [2**32, 1]):
        with pytest.raises(OverflowError):
            worker.store(keys[:32], table)


def test_wrong_descriptions_are_refused(daemon, pages):
    def refused(status: Status, why: str, **options):
        with pytest.raises(KvistError, match=why) as error:
            worker_of(daemon, pages, **options)
        assert error.value.status == status
        return error.value

    swapped = [(0, layer * PAGES * PAGE) for layer in (1, 0, 2)]
    refused(Status.FAILED_PRECONDITION, "page 0 of layer 0 differs", memory=pages.describe(layers=swapped))
    overlapping = (GroupPages(PAGES, SEGMENT // 2, dims=((2, PAGES * SEGMENT),)),)
    refused(Status.INVALID_ARGUMENT, "pages overlap", memory=pages.describe(groups=overlapping))
    refused(Status.INVALID_ARGUMENT, "layer", memory=pages.describe(layers=[(0, 0)]))
    refused(Status.INVALID_ARGUMENT, "memory", memory=None)

    def raises(layer, page, content):
        raise IndexError(f"page {page}")

    error = refused(
        Status.FAILED_PRECONDITION, "write_page failed for page 0 of layer 0", memory=pages.describe(write_page=raises)
    )
    assert isinstance(error.__cause__, IndexError)
    assert str(error.__cause__) == "page 0"
    for space in (
        Space("", "bf16", 4, 8, SPACE.groups),
        Space("m", "bf16", 4, 0, SPACE.groups),
        Space("m", "bf16", 4, 6, SPACE.groups),
    ):
        with pytest.raises(KvistError) as wrong:
            scheduler_of(daemon, space=space, instance="other")
        assert wrong.value.status == Status.INVALID_ARGUMENT
    for space in (Space("a\0b", "bf16", 4, 8, SPACE.groups), Space("m", "bf16", 4, 8, SPACE.groups, revision="a\0b")):
        with pytest.raises(ValueError, match="can't hold NUL"):
            scheduler_of(daemon, space=space)
    with pytest.raises(ValueError, match="instance can't hold NUL"):
        scheduler_of(daemon, instance="a\0b")


def test_an_instance_serves_one_space(daemon, scheduler):
    scheduler.wait_connected(20.0)
    other = Space("model", "fp8", PAGE_TOKENS, CHUNK_TOKENS, SPACE.groups)
    with pytest.raises(KvistError, match="another space") as refused:
        scheduler_of(daemon, space=other)
    assert refused.value.status == Status.FAILED_PRECONDITION
    with scheduler_of(daemon, space=other, ask_again=True) as patient:
        with pytest.raises(KvistError, match="another space"):
            patient.wait_connected(20.0)
        assert patient.connection == Connection.REFUSED
        assert patient.lookup(keys_of(1)).chunks == 0
        scheduler.close()
        end = time.monotonic() + 20.0
        while patient.connection != Connection.CONNECTED:
            assert time.monotonic() < end
            try:
                patient.wait_connected(1.0)
            except KvistError:
                time.sleep(0.05)  # refused still: answered at once


def test_spaces_are_told_apart(daemon, scheduler):
    scheduler.wait_connected(20.0)
    digests = {scheduler.space_digest}
    assert bytes(32) not in digests
    for instance, change in (
        ("a", {"revision": "r2"}),
        ("b", {"layout": "x"}),
        ("c", {"tensor_parallel": 2}),
        ("d", {"revision": "r1"}),
    ):
        with scheduler_of(
            daemon, instance=instance, space=Space("model", "bf16", PAGE_TOKENS, CHUNK_TOKENS, SPACE.groups, **change)
        ) as other:
            other.wait_connected(20.0)
            digests.add(other.space_digest)
    assert len(digests) == 4  # d is the same


# ---- a daemon that comes and goes ----


def test_without_a_daemon_everything_is_a_miss():
    pages = Pages()
    with Daemon(started=False) as daemon, scheduler_of(daemon, connect_timeout_s=0.05) as scheduler:
        with worker_of(daemon, pages, connect_timeout_s=0.05) as worker:
            assert scheduler.connection == worker.connection == Connection.RECONNECTING
            assert scheduler.space_digest == bytes(32)
            keys = keys_of(1)
            assert scheduler.lookup(keys) == Hit(0, 0, Status.UNAVAILABLE)
            for call in (
                lambda: scheduler.lookup_start(keys),
                lambda: worker.store(keys, [0, 1]),
                lambda: worker.alloc(1),
                lambda: scheduler.pin(keys),
                lambda: scheduler.unpin(keys),
            ):
                with pytest.raises(KvistError) as away:
                    call()
                assert away.value.status == Status.UNAVAILABLE
            scheduler.hint(keys)
            scheduler.release(7)
            with pytest.raises(KvistError):
                scheduler.wait_connected(0.02)
            daemon.start()
            for client in (scheduler, worker):
                client.wait_connected(20.0)
                assert client.connection == Connection.CONNECTED
            stored(worker, pages, keys)
            assert scheduler.lookup(keys).chunks == 1


def test_a_wrong_probe_is_noticed_when_the_daemon_comes():
    """Nobody was there to tell at the start: the client is refused then, and everything stays a miss."""
    pages = Pages()
    swapped = pages.describe(layers=[(0, layer * PAGES * PAGE) for layer in (1, 0, 2)])
    with Daemon(started=False) as daemon:
        try:
            worker = worker_of(daemon, pages, memory=swapped, connect_timeout_s=0.05)
        except KvistError as error:  # or it is noticed at once
            assert error.status == Status.FAILED_PRECONDITION
            return
        with worker:
            daemon.start()
            with pytest.raises(KvistError) as refused:
                worker.wait_connected(20.0)
            assert refused.value.status == Status.FAILED_PRECONDITION
            assert worker.connection == Connection.REFUSED


def test_killed_and_started_again():
    pages, keys = Pages(), keys_of(2)
    with Daemon() as daemon, scheduler_of(daemon) as scheduler, worker_of(daemon, pages) as worker:
        stored(worker, pages, keys)
        hit = scheduler.lookup(keys, lease_s=60.0)
        digest = scheduler.space_digest
        daemon.pause()  # what begins now is under way when it dies
        asked = scheduler.lookup_start(keys, deadline_s=60.0)
        load = worker.load(hit.lease, range(8, 12), chunk_count=2, deadline_s=60.0)
        store = worker.store(keys_of(1, seed=1), [0, 1], deadline_s=60.0)
        daemon.kill()
        for op in (load, store):
            result = ended(worker, op)
            assert (result.status, result.pages_released) == (Status.UNAVAILABLE, True)
        answer = scheduler.lookup_result(asked, 20.0)
        assert (answer.chunks, answer.status) == (0, Status.UNAVAILABLE)
        assert scheduler.lookup(keys) == Hit(0, 0, Status.UNAVAILABLE)
        daemon.start()
        for client in (scheduler, worker):
            client.wait_connected(20.0)
        assert scheduler.space_digest == digest
        assert scheduler.lookup(keys).chunks == 0  # it was in memory
        assert ended(worker, worker.load(hit.lease, range(8, 12), chunk_count=2)).status == Status.ABORTED
        content = stored(worker, pages, keys)
        with scheduler.leased(keys, lease_s=60.0) as hit:
            assert ended(worker, worker.load(hit.lease, range(8, 12), chunk_count=2)).status == Status.OK
        assert [pages.read(page) for page in range(8, 12)] == content


# ---- the end ----


def test_a_closed_client_answers_nothing(daemon, pages):
    worker = worker_of(daemon, pages)
    worker.close()
    worker.close()
    assert worker.connection == Connection.RECONNECTING
    for call in (
        lambda: worker.lookup(keys_of(1)),
        lambda: worker.store(keys_of(1), [0, 1]),
        lambda: worker.poll(1),
        lambda: worker.alloc(1),
    ):
        with pytest.raises(KvistError) as closed:
            call()
        assert closed.value.status == Status.INVALID_ARGUMENT
    daemon.wait_status(lambda status: status["sessions"] == 0)


def test_a_forgotten_client_ends_its_session(daemon, pages):
    worker = worker_of(daemon, pages)
    worker.wait_connected(20.0)
    daemon.wait_status(lambda status: status["sessions"] == 1)
    del worker
    daemon.wait_status(lambda status: status["sessions"] == 0)


def test_a_library_that_isnt_there_is_named():
    environment = os.environ | {"KVIST_LIBRARY": "/nowhere/libkvist.so", "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(
        [sys.executable, "-c", "import kvist; kvist.Chain(1)"], env=environment, capture_output=True, text=True
    ).stderr
    assert "ImportError: /nowhere/libkvist.so can't be loaded" in said
    assert "pip install ." in said


def test_default_chunk_tokens():
    assert kvist.default_chunk_tokens() == 256
