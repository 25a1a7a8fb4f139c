"""A request as the radix cache knows it, from its first match until it is released."""

import dataclasses
import enum
import weakref
from array import array
from typing import Any

import torch

from kvist.sglang.copies import Copy
from kvist.sglang.prompt import Prompt


class Stage(enum.Enum):
    NEW = enum.auto()  # kvistd wasn't asked yet
    ASKED = enum.auto()
    FOUND = enum.auto()  # there is more than the tree has; leased
    LOADING = enum.auto()
    THERE = enum.auto()  # in the tree: the next match finds it
    OVER = enum.auto()  # nothing more comes from kvistd


@dataclasses.dataclass
class Load:
    """Tokens [first, end) of a prompt on their way into pages that are in no tree yet.

    indices  [end - first] SGLang's token indices, of whole pages; ours until the tree takes them, or nothing writes into them
    lock     keeps the tokens before them in the tree
    tokens   [end] the prompt's
    """

    copy: Copy
    first: int
    end: int
    indices: torch.Tensor
    lock: Any
    tokens: array


class Tracked:
    """
    of        whether it is this request's: names may come again
    op        the lookup, on the rank that asks
    chunks    how far kvistd could resume the prompt
    lease     keeps these chunks, until the load has ended
    end       how far the request may resume, in tokens, as of its last match
    kept      chunks that kvistd has or was offered
    offers_left  how often the whole chain may be offered again
    tokens    what kvistd was asked for, until it has answered; only for KV events
    """

    __slots__ = (
        "answer",
        "chunks",
        "end",
        "extra_key",
        "kept",
        "lease",
        "load",
        "offers_left",
        "op",
        "priority",
        "prompt",
        "_req",
        "salt",
        "stage",
        "tokens",
    )

    def __init__(self, req: Any, prompt: Prompt) -> None:
        self._req = weakref.ref(req)
        self.salt: str | None = req.cache_salt
        self.extra_key: str | None = req.extra_key
        self.priority: int = req.priority or 0
        self.prompt = prompt
        self.stage = Stage.NEW
        self.op = 0
        self.answer: tuple[int, int] | None = None  # (chunks, lease) that this rank has heard
        self.chunks = 0
        self.lease = 0
        self.end = 0
        self.load: Load | None = None
        self.kept = 0
        self.offers_left = 2
        self.tokens: array | None = None

    def of(self, req: Any) -> bool:
        return self._req() is req
