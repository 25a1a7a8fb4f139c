"""The tensor-parallel ranks of one engine go in step: each keeps a tree of its own, and all trees are to be equal."""

from typing import Any

import torch
import torch.distributed as dist

UNKNOWN = (1 << 63) - 1  # a value that leaves the others' as they are in `least`


class Ranks:
    """group: SGLang's process group of the ranks that split a KV head among them; None: there is one rank.

    Every call with more than one rank is a meeting: all of them make it, in the same order.
    """

    def __init__(self, group: Any | None) -> None:
        self._group = group
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)

    def least(self, values: list[int]) -> list[int]:
        """[values] the least that any rank gave."""
        if self.size == 1 or not values:
            return values
        given = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(given, op=dist.ReduceOp.MIN, group=self._group)
        return given.tolist()

    def of_first(self, text: str) -> str:
        """The first rank's text."""
        if self.size == 1:
            return text
        shared = [text]
        dist.broadcast_object_list(shared, src=dist.get_global_rank(self._group, 0), group=self._group)
        return shared[0]
