"""Where the pages of one rank lie: read off the tensors' strides, and proven by probe pages written through the tensors."""

import dataclasses
import logging
import math

import torch

import kvist
from kvist.shared import Shared, share

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EngineGroup:
    """One of the engine's cache groups.

    table          the number of its block table, as the engine counts them
    block_tokens   tokens of a block, which is a page
    window_tokens  of sliding windows, what the engine keeps behind them included; 0: full attention, or states
    replicated     all tensor-parallel ranks hold the same bytes
    recurrent      a block is no tokens' KV but the state after the last of its tokens
    """

    table: int
    layer_names: tuple[str, ...]
    block_tokens: int
    window_tokens: int
    replicated: bool
    recurrent: bool = False

    @property
    def kind(self) -> kvist.GroupKind:
        if self.recurrent:
            return kvist.GroupKind.STATE
        return kvist.GroupKind.WINDOW if self.window_tokens else kvist.GroupKind.FULL


@dataclasses.dataclass(frozen=True)
class LayerPages:
    """The pages of one layer.

    pages      [page, ...] a view of the tensor; a page's own dimensions in the order of their strides, the longest first
    run_bytes  of a segment: one contiguous piece
    dims       the walk over the segments of a page: (count, stride in bytes), the last varies fastest
    """

    pages: torch.Tensor
    page_stride: int
    run_bytes: int
    dims: tuple[tuple[int, int], ...]

    @property
    def segments(self) -> int:
        return math.prod(count for count, _ in self.dims)

    def write(self, page: int, data: memoryview) -> None:
        """Writes a page through the tensor's own indexing."""
        source = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(self.pages.dtype)
        self.pages[page].copy_(source.view(self.pages.shape[1:]))
        if self.pages.is_cuda:
            torch.cuda.synchronize(self.pages.device)


def describe_layer(name: str, tensor: torch.Tensor, num_blocks: int) -> LayerPages:
    """Raises ValueError where there is no telling which dimension counts the blocks."""
    seen = f"layer {name} is a tensor of shape {tuple(tensor.shape)} and strides {tuple(tensor.stride())} for {num_blocks} blocks"
    if num_blocks < 4:
        raise ValueError(f"{seen}: kvist needs 4 blocks or more")
    places = [d for d, count in enumerate(tensor.shape[:2]) if count and count % num_blocks == 0]
    if len(places) != 1:
        raise ValueError(f"{seen}: kvist needs exactly one of the first two dimensions to count blocks")
    # Where an engine splits blocks for a kernel, a page is several rows.
    pages = tensor.unflatten(places[0], (num_blocks, -1)).movedim(places[0], 0)
    order = sorted(range(1, pages.dim()), key=lambda d: (pages.size(d) > 1, -pages.stride(d)))
    pages = pages.permute(0, *order)
    size = tensor.element_size()
    walk = [(count, stride * size) for count, stride in zip(pages.shape[1:], pages.stride()[1:]) if count > 1]
    run = size
    while walk and walk[-1][1] == run:  # contiguous: one piece with what lies inside it
        run *= walk.pop()[0]
    if len(walk) > 4:
        raise ValueError(f"{seen}: its pages have more than 4 dimensions of pieces")
    span = run
    for count, stride in sorted([*walk, (num_blocks, pages.stride(0) * size)], key=lambda dim: dim[1]):
        if stride < span:
            raise ValueError(f"{seen}: its pages overlap")
        span = stride * count
    return LayerPages(pages, pages.stride(0) * size, run, tuple(walk))


@dataclasses.dataclass(frozen=True)
class RankMemory:
    """The pages of one rank: kvist's groups, each with the number of the block table that it follows, and where they lie."""

    groups: tuple[kvist.Group, ...]
    tables: tuple[int, ...]
    memory: kvist.Memory
    layers: dict[str, tuple[int, int]]  # [name] its group, and how many of the group's layers there are up to it
    shared: Shared | None  # a CPU's pages, until the process ends or `undo`, which comes after the session's end and before the tensors go


def describe_rank(groups: list[EngineGroup], tensors: dict[str, torch.Tensor], num_blocks: int) -> RankMemory:
    """Groups of layers whose pages differ in size become several of kvist's, which follow the same block table."""
    places: list[tuple[int, int]] = []
    layers: list[LayerPages] = []
    described, tables, pages = [], [], []
    names: dict[str, tuple[int, int]] = {}
    regions: dict[int, tuple[int, int]] = {}  # address of a storage -> its number and length
    for group in groups:
        alike: dict[tuple, list[LayerPages]] = {}
        seen: dict[tuple, str] = {}
        twins: dict[str, str] = {}  # shares its KV with an earlier layer
        for name in group.layer_names:
            if name not in tensors:
                raise ValueError(
                    f"the engine registered no KV cache for layer {name}; it registered {', '.join(sorted(tensors))}"
                )
            layer = describe_layer(name, tensors[name], num_blocks)
            where = (layer.pages.data_ptr(), layer.page_stride)
            if where in seen:
                twins[name] = seen[where]
                continue
            seen[where] = name
            form = (layer.run_bytes, layer.dims, layer.page_stride)
            same = alike.setdefault(form, [])
            same.append(layer)
            names[name] = (len(described) + list(alike).index(form), len(same))
        for name, twin in twins.items():
            names[name] = names[twin]
        for (run_bytes, dims, page_stride), same in alike.items():
            described.append(
                kvist.Group(
                    layers=len(same),
                    segment_bytes=run_bytes,
                    segments=same[0].segments,
                    kind=group.kind,
                    window_tokens=group.window_tokens,
                    page_tokens=0 if group.recurrent else group.block_tokens,
                    replicated=group.replicated,
                )
            )
            tables.append(group.table)
            pages.append(kvist.GroupPages(num_blocks, page_stride, dims))
            for layer in same:
                storage = layer.pages.untyped_storage()
                region, _ = regions.setdefault(storage.data_ptr(), (len(regions), storage.nbytes()))
                places.append((region, layer.pages.data_ptr() - storage.data_ptr()))
                layers.append(layer)
    found = [(address, length) for address, (_, length) in regions.items()]
    on_gpu = any(tensor.is_cuda for tensor in tensors.values())
    shared = None
    if not on_gpu:
        try:
            shared = share(found)
            places = [(0, shared.offsets[region] + offset) for region, offset in places]
        except (ValueError, OSError) as error:
            logger.info("kvistd copies this engine's pages through its process, which is slower than sharing them: %s", error)
    memory = kvist.Memory(
        layers=places,
        groups=pages,
        memfds=(shared.fd,) if shared else (),
        process_regions=() if on_gpu or shared else found,
        cuda_regions=found if on_gpu else (),
        write_page=lambda layer, page, data: layers[layer].write(page, data),
    )
    return RankMemory(tuple(described), tuple(tables), memory, names, shared)
