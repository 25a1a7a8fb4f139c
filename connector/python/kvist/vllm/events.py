"""KV events: what is now in kvistd too, in vLLM's own terms, for routers that listen to its publisher.

Stored only: that kvistd has dropped something, the engine doesn't hear; that comes with kvistd's own event stream.
"""

from vllm.distributed.kv_events import MEDIUM_CPU, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.request import Request


def stored(request: Request, first_token: int, end_token: int, hash_tokens: int) -> BlockStored | None:
    """Of the request's tokens [first_token, end_token), in blocks of hash_tokens, which divide both; None when they have no hashes."""
    first, end = first_token // hash_tokens, end_token // hash_tokens
    hashes = request.block_hashes[first:end]
    if not hashes or len(hashes) < end - first:
        return None
    lora = request.lora_request
    return BlockStored(
        block_hashes=[maybe_convert_block_hash(block) for block in hashes],
        parent_block_hash=maybe_convert_block_hash(request.block_hashes[first - 1]) if first else None,
        token_ids=request.all_token_ids[first_token:end_token],
        block_size=hash_tokens,
        lora_id=lora.adapter_id if lora else None,
        medium=MEDIUM_CPU,
        lora_name=lora.name if lora else None,
        locality="LOCAL",
    )
