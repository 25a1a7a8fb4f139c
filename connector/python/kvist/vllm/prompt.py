"""A request's chunk keys, extended as its tokens become known."""

from vllm.v1.request import Request

import kvist
from kvist.chain import as_u32


class Prompt:
    """Binds all that vLLM's own prefix cache binds: LoRA adapter, salt, images and the like where they begin."""

    __slots__ = ("_chain", "_chunk_tokens", "_features", "_hashed", "_request")

    def __init__(self, request: Request, chunk_tokens: int, lora: str, generation: str) -> None:
        """`lora`: the adapter's name (`identity.Adapters`). `generation`: "" or, since the cache was reset, what tells this engine's chunks from all that were stored before."""
        self._request = request
        self._chunk_tokens = chunk_tokens
        self._chain = kvist.Chain(chunk_tokens, salt=request.cache_salt or "", lora=lora)
        if generation:
            self._chain.bind(f"generation {generation}".encode())
        self._hashed = 0
        self._features = sorted(((f.mm_position.offset, f.identifier) for f in request.mm_features), reverse=True)
        self.extend(request.num_tokens)

    def lacks(self, num_tokens: int) -> int:
        """Of the request's first `num_tokens` tokens those that aren't taken in yet."""
        return num_tokens - self._hashed

    def extend(self, num_tokens: int) -> None:
        """Takes in the request's first `num_tokens` tokens."""
        if num_tokens <= self._hashed:
            return
        known = self._request._all_token_ids
        # The list itself where all of it is meant: a prompt of 131,072 tokens takes 0.3 ms to slice.
        tokens = as_u32(known if self._hashed == 0 and num_tokens == len(known) else known[self._hashed : num_tokens])
        at = 0
        while self._features and self._features[-1][0] < num_tokens:
            offset, identifier = self._features.pop()
            # Bound to the chunk in which it begins, before the append that completes that chunk.
            begin = max(offset - offset % self._chunk_tokens - self._hashed, at)
            self._chain.append(tokens[at:begin])
            at = begin
            self._chain.bind(f"feature {offset} {identifier}".encode())
        self._chain.append(tokens[at:] if at else tokens)
        self._hashed = num_tokens

    def keys(self, first: int = 0, last: int | None = None) -> bytes:
        return self._chain.keys(first, last)
