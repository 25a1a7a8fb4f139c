"""The KV that a token has: a function of all tokens up to it, of salt and adapter, and of where in the pool's layers it stands."""

import hashlib

import torch

_MASK = (1 << 64) - 1
rank = 0  # of this process: ranks hold other heads


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def prefixes(tokens, req) -> torch.Tensor:
    """[token] a number for a request's prompt up to it."""
    root = hashlib.sha256(repr((req.cache_salt or None, req.extra_key or None, req.lora_id)).encode()).digest()
    state = int.from_bytes(root[:8], "little")
    found = []
    for token in tokens:
        state = ((state ^ token) * 6364136223846793005 + 1442695040888963407) & _MASK
        state ^= state >> 29
        found.append(_signed(state))
    return torch.tensor(found, dtype=torch.int64)


def buffers(pool) -> list[torch.Tensor]:
    """The pool's tensors, [token, ...] each."""
    return [*pool.kv_buffer] if hasattr(pool, "kv_buffer") else [*pool.k_buffer, *pool.v_buffer]


def _content(numbers: torch.Tensor, which: int, buffer: torch.Tensor) -> torch.Tensor:
    width = buffer[0].numel()
    factors = torch.arange(1, width + 1, dtype=torch.int64) * 0x9E3779B97F4A7C1 + (which + 64 * rank) * 0x632BE59BD9B4E
    return ((numbers[:, None] * (2 * factors + 1)) >> 32).to(torch.int16).view(len(numbers), *buffer.shape[1:])


def write(pool, indices: torch.Tensor, numbers: torch.Tensor) -> None:
    for which, buffer in enumerate(buffers(pool)):
        buffer.view(torch.int16)[indices] = _content(numbers, which, buffer)


def wrong(pool, indices: torch.Tensor, numbers: torch.Tensor) -> list[int]:
    """Which tokens' pages hold anything else, in any layer."""
    bad = torch.zeros(len(numbers), dtype=torch.bool)
    for which, buffer in enumerate(buffers(pool)):
        differs = buffer.view(torch.int16)[indices] != _content(numbers, which, buffer)
        bad |= differs.flatten(1).any(1)
    return bad.nonzero().flatten().tolist()


def junk(pool, indices: torch.Tensor) -> None:
    for buffer in buffers(pool):
        buffer.view(torch.int16)[indices] = -21555
