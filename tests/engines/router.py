"""What a router makes of an engine's KV events: a subscriber of the engine's own publisher, which decodes what comes over the wire by itself.

As strict as consumers may be: an event tells all that is needed to place its blocks, parents are told before their children, and nothing is removed
from where it never was.
"""

import time

import msgspec
import zmq


class Router:
    """A context manager.

    places       {block hash: {(medium, locality, cache group)}}; SGLang's have no localities or groups
    blocks       {block hash: (parent's, its tokens)}
    extra_keys   {(block hash, medium): what else is in the hash}
    """

    def __init__(self, endpoint: str, groups: bool = True) -> None:
        """groups: events name the cache group, as vLLM's do."""
        self._groups = groups
        self.places: dict[int, set[tuple[str, str | None, int]]] = {}
        self.blocks: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        self.extra_keys: dict[tuple[int, str], list | None] = {}
        self.removed = 0
        self.clears_gpu_only = False  # what AllBlocksCleared, which names no medium, means to it
        self._cleared: set[int] = set()
        self._sequence = -1
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(endpoint)
        self._socket.subscribe(b"")

    def hear(self, wait_s: float = 0.0) -> int:
        """Applies what has come; how many batches."""
        heard = 0
        while self._socket.poll(0 if heard else 1000 * wait_s):
            _, sequence, payload = self._socket.recv_multipart()
            number = int.from_bytes(sequence, "big")
            assert self._sequence < 0 or number == self._sequence + 1, "an event was lost on the way"
            self._sequence = number
            batch = msgspec.msgpack.decode(payload)
            for event in batch[1]:
                self._apply(event)
            heard += 1
        return heard

    def _apply(self, event: dict) -> None:
        kind = event.pop("type")
        if kind == "AllBlocksCleared":
            self._cleared.update(self.places)
            for block, places in self.places.items():
                self.places[block] = {place for place in places if self.clears_gpu_only and place[0] != "GPU"}
            return
        group = event["group_idx"] if self._groups else 0
        hashes, place = event["block_hashes"], (event["medium"], event.get("locality"), group)
        assert hashes and all(isinstance(block, int) and -(1 << 63) <= block < 1 << 64 for block in hashes), event
        if kind == "BlockRemoved":
            for block in hashes:
                known = self.places.get(block, set())
                # What was told before this router came it doesn't know; what an engine tells of its own blocks is the engine's.
                strange = place[0] == "GPU" or block in self._cleared or block not in self.blocks
                assert place in known or strange, f"removed from {place}: {known}"
                known.discard(place)
            self.removed += len(hashes)
            return
        assert kind == "BlockStored", event
        size, tokens, parent = event["block_size"], event["token_ids"], event["parent_block_hash"]
        assert size > 0 and len(tokens) == size * len(hashes), event
        assert parent is None or self.places.get(parent), "a block is told before its parent"
        keys = event.get("extra_keys")
        assert keys is None or len(keys) == len(hashes), event
        for at, block in enumerate(hashes):
            told = (parent, tuple(tokens[at * size : (at + 1) * size]))
            assert self.blocks.setdefault(block, told) == told, "one hash for two blocks"
            self.places.setdefault(block, set()).add(place)
            self.extra_keys[block, place[0]] = keys[at] if keys is not None else None
            parent = block

    def beyond_gpu(self, block: int) -> set[tuple[str, str | None]]:
        return {place[:2] for place in self.places.get(block, ()) if place[0] != "GPU"}

    def told(self) -> set[int]:
        """Blocks that are somewhere beyond the engine's own memory."""
        return {block for block in self.places if self.beyond_gpu(block)}

    def until(self, wanted, step, limit_s: float = 20.0) -> None:
        """Steps and hears until `wanted()` holds."""
        end = time.monotonic() + limit_s
        while not wanted():
            assert time.monotonic() < end, f"the router knows {len(self.told())} blocks, {self.removed} were removed"
            step()
            self.hear(0.002)

    def __enter__(self) -> "Router":
        return self

    def __exit__(self, *_) -> None:
        self._socket.close(0)
