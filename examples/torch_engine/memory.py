"""The engine's paged KV memory: one torch tensor over one memfd, so that kvistd can map it, too."""

import fcntl
import mmap
import os

import torch

from torch_engine.model import PAGE_TOKENS, ModelConfig


class PagedMemory:
    """`kv` is bf16 [layers, pages, K and V, token of the page, kv_heads, head_dim]; `fd` is the memfd under it.

    The memfd is sealed against shrinking and growing: a mapping of a file that shrinks is a SIGBUS waiting for its reader.
    Who may use which page is the PagePool's business.
    """

    def __init__(self, config: ModelConfig, pages: int) -> None:
        shape = (config.layers, pages, 2, PAGE_TOKENS, config.kv_heads, config.head_dim)
        size = torch.Size(shape).numel() * torch.bfloat16.itemsize
        self.fd = os.memfd_create("torch_engine-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        # Populated at once, so that no request pays for the first use of a page. Unmapped when the last tensor over it is
        # gone.
        mapping = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.kv = torch.frombuffer(mapping, dtype=torch.bfloat16).view(shape)

    def close(self) -> None:
        """Closes the memfd; the tensor stays usable."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
