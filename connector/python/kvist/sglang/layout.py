"""Where the pages of a host pool lie: read off the pool's own tensors, so that a layout need not be known to be served."""

import dataclasses
import os
from typing import Any

import torch

from kvist.describe import Group, GroupKind, GroupPages, Memory
from kvist.sglang.settings import WANTED

# A page's key says what all tokens before it are, and what is stored begins and ends anywhere in a prompt: pages have no parents here,
# and a prefix is usable when all of it is there. That is a window over everything.
_WHOLE_PROMPT = 1 << 30
_SEGMENTS_MAX = 4096
SUPPORTED = "the layouts layer_first, page_first, page_first_direct and page_head of pools with one K/V or one MLA buffer"


class Unsupported(ValueError):
    """A host pool that can't be described, by name, with what is supported."""


@dataclasses.dataclass(frozen=True)
class PageLayout:
    """The pages of one host pool.

    fd, offset     where page 0 lies: a memfd (borrowed from the pool), in bytes
    pages          how many, `page_tokens` tokens each, `page_stride` bytes apart
    segment_bytes  of each contiguous piece of a page; `dims` is the walk over them as (count, stride in bytes), the last one fastest
    shape, dtype   of one page as the engine indexes it; its elements in row-major order are the page's bytes
    """

    fd: int
    offset: int
    pages: int
    page_tokens: int
    page_stride: int
    segment_bytes: int
    dims: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def segments(self) -> int:
        count = 1
        for dim in self.dims:
            count *= dim[0]
        return count

    @property
    def page_bytes(self) -> int:
        return self.segments * self.segment_bytes

    def group(self) -> Group:
        return Group(
            layers=1,
            segment_bytes=self.segment_bytes,
            segments=self.segments,
            kind=GroupKind.WINDOW,
            window_tokens=_WHOLE_PROMPT,
        )

    def memory(self, write_page) -> Memory:
        return Memory(
            layers=[(0, self.offset)],
            groups=[GroupPages(self.pages, self.page_stride, self.dims)],
            memfds=[self.fd],
            write_page=write_page,
        )


def describe(pool: Any) -> PageLayout:
    """The layout of `pool`, a HostKVCache. Raises Unsupported."""
    name = f"the host pool {type(pool).__name__} of layout {getattr(pool, 'layout', '?')}"
    page_tokens = pool.page_size
    pages = pool.size // page_tokens
    if getattr(pool, "shared_allocation_domain", None) is not None or getattr(pool, "stores_page_envelope", False):
        raise Unsupported(f"{name} moves its pages; kvist needs them at one place and supports {SUPPORTED}")
    if (
        getattr(pool, "dcp_size", 1) != 1
        or getattr(pool, "logical_size", pool.size) != pool.size
        or getattr(pool, "_layer_shard_enabled", False)
    ):
        raise Unsupported(f"{name} shares its pages or layers with other ranks; kvist supports {SUPPORTED}")
    if getattr(pool, "kv_buffer", None) is None:
        raise Unsupported(f"{name} has no memory of its own; kvist supports {SUPPORTED}")
    if not _descriptors(pool):
        raise Unsupported(
            f"{name} is not in a memfd, so kvistd can't reach it. Start SGLang with {WANTED}: literally, for SGLang doesn't see "
            '"allocator" in a file (@file)'
        )
    try:
        first, second, last = (
            pool.get_data_page(page * page_tokens, flat=False) for page in (0, min(1, pages - 1), pages - 1)
        )
    except (NotImplementedError, ValueError, AttributeError, TypeError, IndexError) as error:
        raise Unsupported(f"{name} doesn't say where its pages lie ({error}); kvist supports {SUPPORTED}") from error
    stride = second.data_ptr() - first.data_ptr()
    page_stride = stride if pages > 1 else first.numel() * first.element_size()
    same = all(v.shape == first.shape and v.stride() == first.stride() for v in (second, last))
    if not same or page_stride <= 0 or last.data_ptr() - first.data_ptr() != (pages - 1) * stride:
        raise Unsupported(f"{name} has no equal steps from page to page; kvist supports {SUPPORTED}")
    segment_bytes, dims = _runs(first)
    extent = segment_bytes + sum((count - 1) * step for count, step in dims)
    place = _place(first.data_ptr(), (pages - 1) * page_stride + extent, _descriptors(pool))
    if place is None:
        raise Unsupported(f"{name} has its pages outside its memfd; kvist supports {SUPPORTED}")
    layout = PageLayout(*place, pages, page_tokens, page_stride, segment_bytes, dims, tuple(first.shape), first.dtype)
    if layout.page_bytes != pool.get_size_per_token() * page_tokens:
        raise Unsupported(
            f"{name} has pages of {pool.get_size_per_token() * page_tokens} bytes, of which its tensors show {layout.page_bytes}; kvist "
            f"supports {SUPPORTED}"
        )
    if len(dims) > 4 or layout.segments > _SEGMENTS_MAX:
        raise Unsupported(
            f"{name} has pages of {layout.segments} pieces in {len(dims)} dimensions; kvist supports 4096 in 4"
        )
    return layout


def _descriptors(pool: Any) -> list[int]:
    """The memfds of a pool made with `allocator: shm`."""
    found = [pool_fd] if (pool_fd := getattr(pool, "fd", None)) is not None else []
    return found + [fd for fd in getattr(getattr(pool, "allocator", None), "fds", ()) if fd is not None and fd not in found]


def _runs(page: torch.Tensor) -> tuple[int, tuple[tuple[int, int], ...]]:
    """(bytes of a contiguous piece, walk over the pieces) of a page's view."""
    run = page.element_size()
    dims: list[tuple[int, int]] = []
    for count, stride in zip(reversed(page.shape), reversed(page.stride())):
        step = stride * page.element_size()
        if count == 1:
            continue
        if not dims and step == run:
            run *= count
        else:
            dims.insert(0, (count, step))
    return run, tuple(dims)


def _place(address: int, length: int, fds: list[int]) -> tuple[int, int] | None:
    """(fd, offset) of the memory at `address`, where all of it is a shared mapping of one of `fds`."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            span, mode, offset, device, inode, *_ = line.split()
            begin, end = (int(part, 16) for part in span.split("-"))
            if not begin <= address < end:
                continue
            if address + length > end or mode[3] != "s":
                return None
            for fd in fds:
                status = os.fstat(fd)
                major, minor = (int(part, 16) for part in device.split(":"))
                if (status.st_ino, os.major(status.st_dev), os.minor(status.st_dev)) == (int(inode), major, minor):
                    return fd, int(offset, 16) + address - begin
    return None


class PageWriter:
    """Writes pages through the engine's own indexing, and puts back what the probe pages replace: a backend may be attached to a pool in use.

    Use as a context manager around connecting; nothing else may use the pool's first and last page meanwhile.
    """

    def __init__(self, pool: Any, layout: PageLayout) -> None:
        self._pool = pool
        self._layout = layout
        self._saved: dict[int, torch.Tensor] = {}

    def __enter__(self) -> "PageWriter":
        for page in {0, self._layout.pages - 1}:
            self._saved[page] = self._pool.get_data_page(page * self._layout.page_tokens, flat=True).clone()
        return self

    def __exit__(self, *_) -> None:
        for page, content in self._saved.items():
            self._pool.set_from_flat_data_page(page * self._layout.page_tokens, content)

    def __call__(self, _layer: int, page: int, data: memoryview) -> None:
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(self._layout.dtype)
        self._pool.set_from_flat_data_page(page * self._layout.page_tokens, flat)
