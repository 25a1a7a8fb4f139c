"""A request's chunk keys: kvist's own chain over its tokens, with all that parts requests in SGLang's tree bound into the root."""

from array import array
from typing import Any

import torch

from kvist.chain import Chain, can_be_bound


def has_keys(req: Any) -> bool:
    """Whether a request's tokens, `cache_salt` and `extra_key` (where SGLang puts the LoRA adapter) say all that its KV depends on."""
    return (
        req.multimodal_inputs is None
        and req.input_embeds is None
        and req.positional_embed_overrides is None
        and req.token_type_ids is None
        and req.dllm_config is None
        and req.beam_group is None
        and (req.session is None or not req.session.streaming)
        and can_be_bound(req.cache_salt)
        and can_be_bound(req.extra_key)
    )


class Prompt:
    """Extended as tokens become known."""

    __slots__ = ("_chain", "_hashed")

    def __init__(self, req: Any, chunk_tokens: int, generation: str) -> None:
        """`generation`: "" or, since the tree was reset, what tells this engine's chunks from all that were stored before."""
        self._chain = Chain(chunk_tokens, salt=req.cache_salt or "", lora=req.extra_key or "")
        if req.lora_id:  # SGLang appends it to extra_key; this tells it from an extra_key that ends alike
            self._chain.bind(f"lora {req.lora_id}".encode())
        if generation:
            self._chain.bind(f"generation {generation}".encode())
        self._hashed = 0

    def extend(self, tokens: array, until: int) -> None:
        """Takes in `tokens` [:until], SGLang's array("q"). Raises ValueError for what is no token of a vocabulary."""
        if until <= self._hashed:
            return
        new = torch.frombuffer(tokens, dtype=torch.int64, count=until - self._hashed, offset=self._hashed * 8)
        least, most = torch.aminmax(new)
        if least < 0 or most >= 1 << 31:
            raise ValueError("a token below 0 or above 2^31")
        self._chain.append(array("I", new.to(torch.int32).numpy().tobytes()))
        self._hashed = until

    def keys(self, first: int = 0, last: int | None = None) -> bytes:
        return self._chain.keys(first, last)
