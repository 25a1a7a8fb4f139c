"""Chunk keys against SHA-256 by hand, as storage/base/chunk_key.h says they are made."""

import array
import hashlib
import random
import struct
from collections.abc import Sequence

import pytest
from kvist import Chain, KvistError, Status


def root(salt: str = "", lora: str = "") -> bytes:
    prefixed = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in (lora, salt))
    return hashlib.sha256(b"kvist.chunk.1\0" + prefixed).digest()


def key(parent: bytes, tokens: list[int], extra: Sequence[bytes] = ()) -> bytes:
    bound = b"".join(struct.pack("<I", len(one)) + one for one in extra)
    if extra:
        bound += struct.pack("<I", len(extra))
    return hashlib.sha256(parent + struct.pack(f"<{len(tokens)}I", *tokens) + bound).digest()


def keys(tokens: list[int], chunk_tokens: int, **of_root: str) -> bytes:
    parent, found = root(**of_root), b""
    for first in range(0, len(tokens) // chunk_tokens * chunk_tokens, chunk_tokens):
        parent = key(parent, tokens[first : first + chunk_tokens])
        found += parent
    return found


def random_tokens(count: int) -> list[int]:
    generator = random.Random(count)
    return [generator.randrange(2**32) for _ in range(count)]


@pytest.mark.parametrize("chunk_tokens", [1, 8, 16, 256])
@pytest.mark.parametrize("of_root", [{}, {"salt": "tenant 7"}, {"lora": "adapter@3"}, {"salt": "ü", "lora": "a" * 300}])
def test_keys_are_the_chain_of_sha_256(chunk_tokens, of_root):
    tokens = random_tokens(3 * chunk_tokens + chunk_tokens // 2)
    chain = Chain(chunk_tokens, **of_root)
    chain.append(tokens)
    assert len(chain) == 3
    assert chain.keys() == keys(tokens, chunk_tokens, **of_root)


def test_keys_dont_depend_on_how_tokens_come():
    tokens = random_tokens(1000)
    chain, generator, at = Chain(64), random.Random(1), 0
    while at < len(tokens):
        count = generator.randrange(150)
        chain.append(tokens[at : at + count])
        at += count
        assert len(chain) == min(at, 1000) // 64
    assert chain.keys() == keys(tokens, 64)


@pytest.mark.parametrize("kind", [list, tuple, lambda t: array.array("I", t), lambda t: array.array("L", t), iter], ids=str)
def test_takes_tokens_of_any_kind(kind):
    tokens = random_tokens(100)
    chain = Chain(10)
    chain.append(kind(tokens))
    assert chain.keys() == keys(tokens, 10)


def test_a_long_prompt():
    tokens = random_tokens(131_072)
    chain = Chain(256)
    chain.append(array.array("I", tokens))
    assert chain.keys() == keys(tokens, 256)


def test_binds_what_is_no_token_to_the_chunk_that_is_filling():
    tokens = random_tokens(24)
    chain = Chain(8)
    chain.append(tokens[:10])
    chain.bind(b"image\0with a NUL")
    chain.bind(b"")
    chain.append(tokens[10:])
    first = key(root(), tokens[:8])
    second = key(first, tokens[8:16], [b"image\0with a NUL", b""])
    assert chain.keys() == first + second + key(second, tokens[16:])


def test_hands_out_any_range_of_keys():
    tokens = random_tokens(50)
    chain = Chain(10)
    chain.append(tokens)
    wanted = keys(tokens, 10)
    assert chain.keys(0, 2) == wanted[:64]
    assert chain.keys(3) == wanted[96:]
    assert chain.keys(4, 99) == wanted[128:]
    assert chain.keys(2, 2) == chain.keys(5) == chain.keys(9, 4) == Chain(10).keys() == b""


def test_salt_and_lora_separate():
    found = set()
    for of_root in (
        {},
        {"salt": "a"},
        {"lora": "a"},
        {"salt": "a", "lora": "b"},
        {"salt": "b", "lora": "a"},
        {"salt": "ab"},
    ):
        chain = Chain(4, **of_root)
        chain.append([1, 2, 3, 4])
        found.add(chain.keys())
    assert len(found) == 6


def test_refuses_what_it_cant_hash():
    with pytest.raises(KvistError) as refused:
        Chain(0)
    assert refused.value.status == Status.INVALID_ARGUMENT
    for salt, lora in (("a\0b", ""), ("", "a\0b")):
        with pytest.raises(ValueError, match="NUL"):
            Chain(4, salt=salt, lora=lora)
    chain = Chain(4)
    for tokens in ([-1], [2**32], [1.5], ["1"]):
        with pytest.raises((OverflowError, TypeError)):
            chain.append(tokens)
    chain.append([1, 2, 3, 4])
    assert chain.keys() == keys([1, 2, 3, 4], 4)  # nothing of what was refused is in it
