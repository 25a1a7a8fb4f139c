"""What an engine tells kvistd of itself: its space, and where its pages lie. Fields as in kvist.h."""

import ctypes
import dataclasses
import enum
from collections.abc import Callable, Sequence

from kvist import _abi


class Role(enum.IntEnum):
    SCHEDULER = 0
    WORKER = 1


class GroupKind(enum.IntEnum):
    FULL = 0
    WINDOW = 1
    STATE = 2


@dataclasses.dataclass(frozen=True)
class Group:
    """Layers that share a block table and a reuse rule. `layers` on one rank; `page_tokens` 0: the space's."""

    layers: int
    segment_bytes: int
    segments: int = 1
    kind: GroupKind = GroupKind.FULL
    window_tokens: int = 0
    page_tokens: int = 0
    replicated: bool = False


@dataclasses.dataclass(frozen=True)
class Space:
    """All that must match for KV bytes to be reusable. `layout` says what a page's bytes mean beyond their sizes."""

    model: str
    kv_dtype: str
    page_tokens: int
    chunk_tokens: int
    groups: tuple[Group, ...]
    revision: str = ""
    layout: str = ""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1


@dataclasses.dataclass(frozen=True)
class GroupPages:
    """The pages of one group: how many, how far apart in bytes, and the walk over a page's segments as (count, stride) of each dimension."""

    pages: int
    page_stride: int
    dims: tuple[tuple[int, int], ...] = ()


# (layer, page, bytes): writes `bytes` as that page's segments, through the engine's own tensor indexing. Layers of all groups, in order.
WritePage = Callable[[int, int, memoryview], None]


@dataclasses.dataclass(frozen=True)
class Memory:
    """A worker's paged KV memory, described, not recognised.

    layers           [layers of all groups] (region, offset in bytes) of page 0
    groups           [groups of the space]
    memfds           file descriptors; regions 0 and up. The client duplicates them.
    process_regions  (address, length) of memory that is in no memfd; regions len(memfds) and up. Stays mapped until the client is closed.
    cuda_regions     (address, length) of GPU memory, all on one GPU, and then no other regions; stays allocated until the client is closed
    write_page       called while connecting only, for the first and the last page of every layer, whose content it replaces; GPU memory is written when it
                     returns
    """

    layers: Sequence[tuple[int, int]]
    groups: Sequence[GroupPages]
    write_page: WritePage
    memfds: Sequence[int] = ()
    process_regions: Sequence[tuple[int, int]] = ()
    cuda_regions: Sequence[tuple[int, int]] = ()


def c_text(name: str, value: str) -> bytes:
    """`value` as a C string, which ends at a NUL: what differs behind it would be taken for the same."""
    if "\0" in value:
        raise ValueError(f"{name} can't hold NUL: {value!r}")
    return value.encode()


def c_array(kind: type, items: Sequence):
    return (kind * len(items))(*items)


def c_space(space: Space) -> _abi.Space:
    groups = c_array(
        _abi.Group,
        [
            _abi.Group(
                ctypes.sizeof(_abi.Group),
                g.kind,
                g.layers,
                g.window_tokens,
                g.page_tokens,
                g.segment_bytes,
                g.segments,
                g.replicated,
            )
            for g in space.groups
        ],
    )
    return _abi.Space(
        struct_size=ctypes.sizeof(_abi.Space),
        model=c_text("space.model", space.model),
        revision=c_text("space.revision", space.revision),
        kv_dtype=c_text("space.kv_dtype", space.kv_dtype),
        layout=c_text("space.layout", space.layout),
        page_tokens=space.page_tokens,
        chunk_tokens=space.chunk_tokens,
        tensor_parallel=space.tensor_parallel,
        pipeline_parallel=space.pipeline_parallel,
        groups=groups,
        group_count=len(groups),
    )


class Writer:
    """`write_page` as C calls it. What it raises is kept: an exception can't pass through C."""

    def __init__(self, write_page: WritePage) -> None:
        self.error: BaseException | None = None

        def call(_context, layer: int, page: int, data: int, size: int) -> int:
            try:
                write_page(layer, page, memoryview((ctypes.c_uint8 * size).from_address(data)).cast("B"))
                return 0
            except BaseException as error:  # noqa: BLE001
                self.error = error
                return 1

        self.c_function = _abi.WRITE_PAGE(call)


def c_memory(memory: Memory, writer: Writer) -> _abi.Memory:
    groups = c_array(
        _abi.GroupPages,
        [
            _abi.GroupPages(g.pages, g.page_stride, c_array(_abi.Dim, [_abi.Dim(*d) for d in g.dims]), len(g.dims))
            for g in memory.groups
        ],
    )
    return _abi.Memory(
        struct_size=ctypes.sizeof(_abi.Memory),
        memfds=c_array(ctypes.c_int, memory.memfds) if memory.memfds else None,
        memfd_count=len(memory.memfds),
        layers=c_array(_abi.Layer, [_abi.Layer(*place) for place in memory.layers]),
        layer_count=len(memory.layers),
        write_page=writer.c_function,
        groups=groups,
        group_count=len(groups),
        process_regions=c_array(_abi.ProcessRegion, [_abi.ProcessRegion(*r) for r in memory.process_regions])
        if memory.process_regions
        else None,
        process_region_count=len(memory.process_regions),
        cuda_regions=c_array(_abi.CudaRegion, [_abi.CudaRegion(*r) for r in memory.cuda_regions])
        if memory.cuda_regions
        else None,
        cuda_region_count=len(memory.cuda_regions),
    )
