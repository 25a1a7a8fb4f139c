"""Private memory of this process made shared, where it lies: so that kvistd can map what an engine has allocated for itself.

Pages of a private anonymous mapping are copied into a memfd, which is then mapped in their place: every pointer into them stays right. kvistd copies from
and to a mapping at 3 to 4 times the rate of process_vm_readv (connector/python/README.md), and for an engine of any user.
"""

import ctypes
import dataclasses
import errno
import fcntl
import mmap
import os
from array import array
from collections.abc import Sequence

# Allocators give what is larger pages of its own: glibc's mmap threshold never grows above this. So nothing else lies in the first and the last page.
_LEAST = 32 << 20
_PAGE = mmap.PAGESIZE
_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_PUNCH_HOLE_KEEP_SIZE = 3
_MADV_POPULATE_WRITE = 23
_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 0x2, 0x4
_PRESENT_OR_SWAPPED = 3 << 62  # of a page in /proc/self/pagemap
_COPY_PAGES = 4096
_PIECE = 64 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclasses.dataclass(frozen=True)
class Shared:
    """fd: one memfd; offsets: where in it each region begins."""

    fd: int
    offsets: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]  # [begin, end) that is mapped in place

    def undo(self) -> None:
        """The memory is private again, with the same content: an allocator may take what it gets back for private. Nobody may use it meanwhile; who still
        maps the memfd finds zeros there. Raises OSError; what is still shared then stays so."""
        try:
            where = 0
            for begin, end in self.spans:
                for at in range(begin, end, _PIECE):
                    size = min(_PIECE, end - at)
                    private = _mapped(None, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
                    ctypes.memmove(private, at, size)
                    if _libc.mremap(private, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED, at) != at:
                        raise OSError(ctypes.get_errno(), "mremap: " + os.strerror(ctypes.get_errno()))
                    _libc.fallocate(self.fd, _PUNCH_HOLE_KEEP_SIZE, where, size)  # else all of it would be there twice in the end
                    where += size
        finally:
            os.close(self.fd)


def share(regions: Sequence[tuple[int, int]]) -> Shared:
    """Moves the regions (address, length) of this process, disjoint, into one memfd. Nobody may write to them meanwhile; before they are freed it is undone.

    Raises ValueError for memory that can't be moved, and says why; OSError where the system refuses. Then all is as it was.
    """
    if _huge_pages_only_private():
        raise ValueError("transparent huge pages are always used for private memory here, and never for shared: the engine would be slower")
    spans = [(address // _PAGE * _PAGE, -(-(address + length) // _PAGE) * _PAGE) for address, length in regions]
    ordered = sorted(spans)
    if any(end > begin for (_, end), (begin, _) in zip(ordered, ordered[1:])):
        raise ValueError("two regions lie in one page")
    mappings = _private_mappings()
    for (address, length), (begin, end) in zip(regions, spans):
        if length < _LEAST:
            raise ValueError(f"{length} bytes at {address:#x} are less than {_LEAST >> 20} MiB: other data may lie in their pages")
        if not any(first <= begin and end <= last for first, last in mappings):
            raise ValueError(f"{length} bytes at {address:#x} don't lie in one private mapping that can be read and written")
    fd = os.memfd_create("kvist-pages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    offsets, at, done = [], 0, 0
    try:
        os.ftruncate(fd, sum(end - begin for begin, end in spans))
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
        for (address, _), (begin, end) in zip(regions, spans):
            _copy_out(fd, at, begin, end)
            _mapped(begin, end - begin, mmap.MAP_SHARED | _MAP_FIXED, fd, at)
            done += 1
            # What kvistd touches first would count as its own; and what there is no memory for had better be known now. Kernels older than 5.14 don't know this.
            if _libc.madvise(begin, end - begin, _MADV_POPULATE_WRITE) != 0 and ctypes.get_errno() != errno.EINVAL:
                raise OSError(ctypes.get_errno(), "madvise: " + os.strerror(ctypes.get_errno()))
            offsets.append(at + address - begin)
            at += end - begin
    except BaseException:
        Shared(fd, (), tuple(spans[:done])).undo()
        raise
    return Shared(fd, tuple(offsets), tuple(spans))


def _huge_pages_only_private() -> bool:
    def chosen(name: str) -> str:
        try:
            with open(f"/sys/kernel/mm/transparent_hugepage/{name}") as file:
                return file.read().partition("[")[2].partition("]")[0]
        except OSError:
            return "never"

    return chosen("enabled") == "always" and chosen("shmem_enabled") not in ("always", "within_size", "force")


def _private_mappings() -> list[tuple[int, int]]:
    """Of anonymous memory, neighbours as one."""
    found: list[tuple[int, int]] = []
    with open("/proc/self/maps") as file:
        for line in file:
            where, rights, _, _, inode, *name = line.split(maxsplit=5)
            if rights != "rw-p" or inode != "0" or (name and not name[0].startswith("[anon")):
                continue
            first, last = (int(address, 16) for address in where.split("-"))
            if found and found[-1][1] == first:
                found[-1] = (found[-1][0], last)
            else:
                found.append((first, last))
    return found


def _copy_out(fd: int, at: int, begin: int, end: int) -> None:
    """Pages that nobody has touched are zero in the memfd, too."""
    pages = array("Q")
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(begin // _PAGE * pages.itemsize)
        while len(pages) < (end - begin) // _PAGE:
            read = pagemap.read((end - begin) // _PAGE * pages.itemsize - len(pages) * pages.itemsize)
            if not read:
                raise OSError("/proc/self/pagemap ends before the memory does")
            pages.frombytes(read)
    page = 0
    while page < len(pages):
        if not pages[page] & _PRESENT_OR_SWAPPED:
            page += 1
            continue
        stop = page + 1
        while stop < len(pages) and stop - page < _COPY_PAGES and pages[stop] & _PRESENT_OR_SWAPPED:
            stop += 1
        done, size = 0, (stop - page) * _PAGE
        content = (ctypes.c_uint8 * size).from_address(begin + page * _PAGE)
        while done < size:
            done += os.pwrite(fd, memoryview(content)[done:], at + page * _PAGE + done)
        page = stop


def _mapped(begin: int | None, size: int, how: int, fd: int, at: int) -> int:
    mapped = _libc.mmap(begin, size, mmap.PROT_READ | mmap.PROT_WRITE, how, fd, at)
    if mapped is None or mapped == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap: " + os.strerror(ctypes.get_errno()))
    return mapped
