"""What KV bytes a token has, so that every page can be checked: a function of the whole prefix, the adapter, the salt and the images.

A token's name is a 64-bit number mixed from all tokens up to it. Its bytes in a layer are mixed from its name and the layer. Two tokens with
one name are the same computation, and only they may share pages.
"""

import dataclasses

import numpy as np

_M = (1 << 64) - 1


def _mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _M
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _M
    return x ^ (x >> 31)


def _number(text: str) -> int:
    x = 0x9E3779B97F4A7C15
    for b in text.encode(errors="surrogatepass"):
        x = _mix(x ^ b)
    return x


@dataclasses.dataclass
class Identity:
    """What makes one request's tokens other computations than another's. `images`: (identifier, first token, tokens)."""

    salt: str = ""
    lora: str = ""
    images: tuple[tuple[str, int, int], ...] = ()


class Names:
    """The names of a request's tokens, extended as tokens come."""

    def __init__(self, identity: Identity) -> None:
        self._root = _mix(_number(identity.salt) ^ _mix(_number(identity.lora)))
        self._images = [(_number(i), first, first + count) for i, first, count in identity.images]
        self._names: list[int] = []
        self._tokens: list[int] = []

    def _next(self, before: int, position: int, token: int) -> int:
        name = _mix(before ^ _mix(token + 1))
        for image, first, last in self._images:
            if first <= position < last:
                name = _mix(name ^ image)
        return name

    @property
    def known(self) -> list[int]:
        return self._names

    def of(self, tokens: list[int]) -> list[int]:
        """Names of all of `tokens`, which begin with what was named before or differ from it (a rejected draft)."""
        same = len(self._names)
        if same > len(tokens) or tokens[:same] != self._tokens:
            same = next((i for i, (a, b) in enumerate(zip(tokens, self._tokens)) if a != b), min(same, len(tokens)))
            del self._names[same:], self._tokens[same:]
        before = self._names[-1] if self._names else self._root
        for position in range(same, len(tokens)):
            before = self._next(before, position, tokens[position])
            self._names.append(before)
        self._tokens.extend(tokens[same:])
        return self._names


def next_token(name: int, vocabulary: int) -> int:
    """What the model says after the token of this name."""
    return 3 + _mix(name ^ 0xA5A5) % (vocabulary - 3)


def page_bytes(names: np.ndarray, layer: int, words: int) -> np.ndarray:
    """[len(names), words] int32: the KV of these tokens in this layer."""
    word = np.arange(words, dtype=np.uint64) + np.uint64(1 + layer * 4096)
    with np.errstate(over="ignore"):
        x = names[:, None] ^ (word * np.uint64(0x9E3779B97F4A7C15))[None, :]
        x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (x >> np.uint64(32)).astype(np.uint32).view(np.int32)
