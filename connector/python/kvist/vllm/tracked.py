"""What the scheduler's side knows of a request."""

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

import kvist
from kvist.vllm.eviction import Chunk
from kvist.vllm.prompt import Prompt


class Loading:
    """A load that was planned. blocks: all that it may write; if_failed: ids of those that are wrong when one inside the step fails."""

    __slots__ = ("blocks", "if_failed", "job", "lease")

    def __init__(self, job: int, lease: int, blocks: list[KVCacheBlock], if_failed: set[int]) -> None:
        self.job = job
        self.lease = lease
        self.blocks = blocks
        self.if_failed = if_failed


class Tracked:
    """
    op, hit      of the lookup under way, else 0; its answer, None until there is one
    computed     the local hit that the last answer was about
    may_load     not after a failed load
    loading      the load under way
    next_store   chunks before it are in kvistd, or on their way there; next_store_tokens: when this one is full
    state_at     tokens of the last state that was stored
    last_kept    on eviction: of chunk next_store - 1, where it is still the engine's alone
    turn         the step in which to look whether that one is full (`Turns`)
    slow_since   when the answer was first that some of it is still on its way from a slower tier
    offers_left  how often the whole chain may be offered again
    """

    __slots__ = (
        "_chunk_tokens",
        "asked_at",
        "computed",
        "hit",
        "last_kept",
        "loading",
        "may_load",
        "next_store",
        "next_store_tokens",
        "offers_left",
        "op",
        "preemptions",
        "prompt",
        "request",
        "slow_since",
        "state_at",
        "stored_first",
        "turn",
    )

    def __init__(self, request: Request, prompt: Prompt, chunk_tokens: int) -> None:
        self._chunk_tokens = chunk_tokens
        self.request = request
        self.prompt = prompt
        self.op = 0
        self.hit: kvist.Hit | None = None
        self.asked_at = 0.0
        self.slow_since = 0.0
        self.computed = 0
        self.may_load = True
        self.loading: Loading | None = None
        self.preemptions = request.num_preemptions
        self.next_store = 0
        self.next_store_tokens = chunk_tokens
        self.state_at = 0
        self.turn = 0
        self.stored_first: int | None = None
        self.last_kept: Chunk | None = None
        self.offers_left = 2

    def kvistd_has(self, chunks: int) -> None:
        """What comes next follows on a chunk that kvistd has."""
        self.stored_until(chunks)
        self.state_at = 0
        self.last_kept = None

    def stored_until(self, chunks: int) -> None:
        self.next_store = chunks
        self.next_store_tokens = (chunks + 1) * self._chunk_tokens

    def offer_again(self) -> None:
        """Without its first chunks nobody finds the later ones: with its next full chunk the request offers all of them."""
        if self.offers_left > 0 and self.loading is None:
            self.offers_left -= 1
            self.kvistd_has(0)
            self.next_store_tokens = (self.request.num_tokens // self._chunk_tokens + 1) * self._chunk_tokens
