"""Private memory made shared, in place: what an engine sees of it stays the same, and a mapping of the memfd sees it, too."""

import ctypes
import mmap
import os

import pytest

from kvist.shared import share

SIZE = 33 << 20
HEAD = 64  # an allocation begins behind its allocator's header


class Allocation:
    """As glibc makes large ones: [header, SIZE bytes] in a mapping of its own."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SIZE + mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._base = ctypes.addressof(ctypes.c_uint8.from_buffer(self._map))
        self._map[:HEAD] = b"h" * HEAD
        self.address = self._base + HEAD
        self.bytes = memoryview((ctypes.c_uint8 * SIZE).from_address(self.address)).cast("B")

    def header(self) -> bytes:
        return ctypes.string_at(self._base, HEAD)


def test_what_was_there_stays_and_both_see_what_is_written():
    one, other = Allocation(), Allocation()
    one.bytes[0], one.bytes[SIZE - 1], other.bytes[12345678] = 1, 2, 3
    shared = share([(one.address, SIZE), (other.address, SIZE)])
    with mmap.mmap(shared.fd, 0) as view:
        at, behind = shared.offsets
        assert (one.bytes[0], one.bytes[SIZE - 1], other.bytes[12345678]) == (1, 2, 3)
        assert (view[at], view[at + SIZE - 1], view[behind + 12345678]) == (1, 2, 3)
        assert sum(one.bytes[: 1 << 20]) == 1
        one.bytes[4096] = 4
        view[behind + 5] = 5
        assert view[at + 4096] == 4 and other.bytes[5] == 5
        shared.undo()
        one.bytes[4096] = 6
        assert view[at + 4096] == 0, "private again, and not there twice"
    assert (one.bytes[0], one.bytes[4096], one.bytes[SIZE - 1], other.bytes[5], other.bytes[12345678]) == (1, 6, 2, 5, 3)
    assert one.header() == other.header() == b"h" * HEAD
    with pytest.raises(OSError):
        os.fstat(shared.fd)


def test_what_cannot_be_shared_is_refused_and_stays_as_it_was():
    one = Allocation()
    one.bytes[7] = 7
    with pytest.raises(ValueError, match="less than 32 MiB"):
        share([(one.address, 1 << 20)])
    fd = os.memfd_create("shared_test")
    os.ftruncate(fd, SIZE)
    in_file = mmap.mmap(fd, SIZE)
    address = ctypes.addressof(ctypes.c_uint8.from_buffer(in_file))
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="don't lie in one private mapping"):
        share([(one.address, SIZE), (address, SIZE)])
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert one.bytes[7] == 7 and one.header() == b"h" * HEAD


def test_regions_that_meet_in_a_page_are_refused():
    one = Allocation()
    one.bytes[9] = 9
    with pytest.raises(ValueError, match="in one page"):
        share([(one.address, SIZE - 100), (one.address + SIZE - 100, 100)])
    assert one.bytes[9] == 9


def test_a_failure_half_way_leaves_private_memory(monkeypatch):
    import kvist.shared as module

    one, other = Allocation(), Allocation()
    one.bytes[9], other.bytes[9] = 9, 10
    copy_out, calls = module._copy_out, []

    def fails_the_second_time(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError("no memory")
        copy_out(*arguments)

    monkeypatch.setattr(module, "_copy_out", fails_the_second_time)
    with pytest.raises(OSError, match="no memory"):
        share([(one.address, SIZE), (other.address, SIZE)])
    assert (one.bytes[9], other.bytes[9]) == (9, 10)
    with open("/proc/self/maps") as maps:
        assert "kvist-pages" not in maps.read()
