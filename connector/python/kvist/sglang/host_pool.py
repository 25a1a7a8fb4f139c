"""One of SGLang's host pools, and its session with kvistd."""

import logging
import os
import socket
import uuid
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName

from kvist.client import Client
from kvist.describe import Role, Space, WritePage
from kvist.sglang import identity
from kvist.sglang.layout import PageLayout, PageWriter, describe
from kvist.sglang.pages import Pages
from kvist.sglang.settings import Settings

logger = logging.getLogger(__name__)

_FEW_TOKENS = 16  # of a page; below, what is said of a page costs more than it holds


class HostPool:
    """The pages of `pool` (a HostKVCache, borrowed), and the session that serves them.

    Raises layout.Unsupported, or KvistError where kvistd refuses what was described.
    """

    def __init__(
        self, name: str, pool: Any, config: HiCacheStorageConfig, settings: Settings, main_replicated: bool
    ) -> None:
        self.pool = pool
        self.layout = describe(pool)
        if self.layout.page_tokens < _FEW_TOKENS:
            logger.warning(
                "kvist: pages of %d tokens are slow to find and copy; start SGLang with --page-size 64",
                self.layout.page_tokens,
            )
        # What has heads is split over the tensor-parallel ranks also beside MLA.
        replicated = main_replicated and (name == PoolName.KV or not hasattr(pool, "head_num"))
        self.space = identity.space_of(config, pool, name, self.layout, replicated, settings)
        with PageWriter(pool, self.layout) as write_page:
            self.pages = open_session(name, config, self.space, self.layout, write_page, settings)

    def page_numbers(self, host_indices: torch.Tensor | None, keys: list[str]) -> list[int]:
        """The pages that SGLang's token indices [keys * page_tokens] name. Raises ValueError where they name no whole pages."""
        tokens = self.layout.page_tokens
        if host_indices is None or host_indices.numel() != len(keys) * tokens:
            found = 0 if host_indices is None else host_indices.numel()
            raise ValueError(f"{len(keys)} pages of {tokens} tokens need {len(keys) * tokens} host indices, not {found}")
        by_page = host_indices.reshape(-1, tokens)
        firsts = by_page[:, :1]
        whole = torch.equal(by_page, firsts + torch.arange(tokens, dtype=by_page.dtype, device=by_page.device))
        numbers = firsts.flatten().tolist()
        if not whole or any(n % tokens != 0 or not 0 <= n < self.layout.pages * tokens for n in numbers):
            raise ValueError(
                f"the host indices are not those of whole pages of {tokens} tokens in a pool of {self.layout.pages}"
            )
        return [n // tokens for n in numbers]


def open_session(
    name: str, config: HiCacheStorageConfig, space: Space, layout: PageLayout, write_page: WritePage, settings: Settings
) -> Pages:
    """A worker's session, whose instance is named like nothing else: to kvistd each is an engine of its own."""
    ranks = f"tp{config.tp_rank} pp{config.pp_rank} dp{getattr(config, 'dp_rank', 0)}"
    client = Client(
        role=Role.WORKER,
        instance=f"sglang {socket.gethostname()[:64]} {os.getpid()} {ranks} {name} {uuid.uuid4().hex[:8]}",
        space=space,
        memory=layout.memory(write_page),
        socket=settings.socket,
        deadline_s=settings.deadline_s,
        connect_timeout_s=settings.connect_timeout_s,
        ask_again=True,  # what kvistd refuses today it may take when it has been upgraded
    )
    return Pages(client, deadline_s=settings.deadline_s, lookup_s=settings.lookup_s)
