"""Chunk keys: the names of a prompt's chunks."""

import ctypes
from array import array
from collections.abc import Iterable

from kvist import _abi
from kvist.library import check, library


def as_u32(numbers: Iterable[int]) -> array:
    """`numbers` as C's uint32_t[]; as it is when it already is one. Numbers that don't fit raise OverflowError."""
    if isinstance(numbers, array) and numbers.typecode == "I":
        return numbers
    if isinstance(numbers, list):
        words = array("I")
        words.fromlist(numbers)  # two thirds of the time of array("I", numbers)
        return words
    return array("I", numbers)


def can_be_bound(text: str | None) -> bool:
    """Whether a key can hold it: C ends a text at NUL, and a lone surrogate has no bytes."""
    if not text:
        return True
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


class Chain:
    """The chunk keys of one request, extended as tokens come. Used by one thread at a time.

    Keys are handed out as bytes, 32 for each key: they can be sliced, compared and sent to other processes.
    """

    __slots__ = ("_chain", "_lib")

    def __init__(self, chunk_tokens: int, *, salt: str = "", lora: str = "") -> None:
        self._chain = ctypes.c_void_p()
        self._lib = library()
        if "\0" in salt or "\0" in lora:
            raise ValueError("salt and lora can't hold NUL: C ends there, and what differs behind it would be shared")
        options = _abi.ChainOptions(ctypes.sizeof(_abi.ChainOptions), chunk_tokens, salt.encode(), lora.encode())
        check(self._lib.chain_create(options, self._chain))

    def append(self, tokens: Iterable[int]) -> None:
        """Adds tokens (fastest as array("I")); those past the last full chunk wait for the rest of theirs."""
        tokens = as_u32(tokens)
        address, count = tokens.buffer_info()
        check(self._lib.chain_append(self._chain, address, count))

    def bind(self, extra: bytes) -> None:
        """Binds what is not a token to the chunk that is filling; call before the append that completes it."""
        check(self._lib.chain_bind(self._chain, extra, len(extra)))

    def __len__(self) -> int:
        """How many chunks are full."""
        count = ctypes.c_size_t()
        self._lib.chain_keys(self._chain, count)
        return count.value

    def keys(self, first: int = 0, last: int | None = None) -> bytes:
        """The keys of the full chunks [first, last)."""
        count = ctypes.c_size_t()
        address = self._lib.chain_keys(self._chain, count)
        last = count.value if last is None else min(last, count.value)
        if first >= last:
            return b""
        return ctypes.string_at(address + first * _abi.KEY_BYTES, (last - first) * _abi.KEY_BYTES)

    def __del__(self) -> None:
        if getattr(self, "_chain", None):
            self._lib.chain_destroy(self._chain)
            self._chain = None
