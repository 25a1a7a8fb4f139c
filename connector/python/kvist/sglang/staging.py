"""Pages of our own, for SGLang's calls that hand over tensors instead of pages of the host pool."""

import fcntl
import mmap
import os
import threading
from typing import Any

import torch

from kvist.sglang.layout import PageLayout
from kvist.sglang.pages import COPY_PAGES

_BYTES_MOST = 64 << 20
_F_ADD_SEALS, _F_SEAL_SHRINK = 1033, 0x2


class Staging:
    """A memfd of a few pages, laid like those of the host pool but piece after piece, so that both share what is stored.

    Threads: one user at a time, by `lock`.
    """

    def __init__(self, pool_layout: PageLayout) -> None:
        self.lock = threading.Lock()
        size = pool_layout.page_bytes
        pages = max(1, min(COPY_PAGES, _BYTES_MOST // size))
        self._fd = os.memfd_create("kvist-staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, pages * size)
        fcntl.fcntl(self._fd, _F_ADD_SEALS, _F_SEAL_SHRINK)
        self._map = mmap.mmap(self._fd, pages * size)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8).view(pages, size)
        self.layout = PageLayout(
            fd=self._fd,
            offset=0,
            pages=pages,
            page_tokens=pool_layout.page_tokens,
            page_stride=size,
            segment_bytes=pool_layout.segment_bytes,
            dims=((pool_layout.segments, pool_layout.segment_bytes),) if pool_layout.segments > 1 else (),
            shape=pool_layout.shape,
            dtype=pool_layout.dtype,
        )

    def write_page(self, _layer: int, page: int, data: memoryview) -> None:
        self._bytes[page] = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def fits(self, tensor: Any) -> bool:
        return isinstance(tensor, torch.Tensor) and tensor.numel() * tensor.element_size() == self.layout.page_bytes

    def put(self, page: int, tensor: torch.Tensor) -> None:
        self._bytes[page] = tensor.detach().contiguous().view(-1).view(torch.uint8)

    def take(self, page: int, into: torch.Tensor | None) -> torch.Tensor:
        """The page's content as a flat tensor of the pool's type, in `into` if there is one."""
        content = self._bytes[page].view(self.layout.dtype)
        if into is None:
            return content.clone()
        into.copy_(self._bytes[page].view(into.dtype).view(into.shape))
        return into

    def close(self) -> None:
        """After the session that uses it."""
        os.close(self._fd)  # the mapping goes with the last tensor on it
