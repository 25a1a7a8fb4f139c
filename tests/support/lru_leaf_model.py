"""A cache of token blocks that evicts the least recently used leaf: what kvistd promises to hit, told as plainly as can be.

Knows nothing of kvist: it reads a trace and counts. A block is named by its hash id, and a request is a path of ids from the root.

  - a request hits its leading full blocks that are there when it arrives; its whole path was used at its time;
  - its other full blocks are stored, first to last, each in a free slot or in that of the leaf that was used longest ago;
  - a block of the request's own path is never evicted for it: when nothing else is left, the rest of the request is not stored;
  - one lookup asks for 4,096 blocks at most; the blocks behind them are never hit and not stored.
"""

import gzip
import heapq
import json

BLOCK_TOKENS = 512
BLOCKS_ASKED_MAX = 4096


def read_trace(path, limit=None):
    """[(all listed blocks, [ids of the full ones])] of the first `limit` requests."""
    requests = []
    with (gzip.open if str(path).endswith(".gz") else open)(path, "rt") as lines:
        for line in lines:
            if limit is not None and len(requests) == limit:
                break
            row = json.loads(line)
            ids = row["hash_ids"]
            full = [name for i, name in enumerate(ids) if (i + 1) * BLOCK_TOKENS <= row["input_length"]]
            requests.append((len(ids), full))
    return requests


def slots_of(requests, fraction):
    """The size of a cache that is this share of the unique full blocks."""
    return max(1, int(fraction * len({name for _, full in requests for name in full})))


class LruLeafCache:
    def __init__(self, slots):
        self.slots = slots
        self.used = {}      # block -> when it was last used
        self.parent = {}    # block -> the block before it, None for a first one
        self.children = {}  # block -> how many blocks hang on it
        self.oldest = []    # heap of (when, leaf); entries that are no longer true are skipped
        self.now = 0

    def _touch(self, block):
        self.used[block] = self.now
        if self.children[block] == 0:
            heapq.heappush(self.oldest, (self.now, block))

    def _evict(self):
        """Removes the least recently used leaf. False when every leaf is of the request of this moment."""
        while self.oldest:
            when, block = self.oldest[0]
            if self.used.get(block) != when or self.children[block] > 0:
                heapq.heappop(self.oldest)
                continue
            if when == self.now:
                return False
            heapq.heappop(self.oldest)
            parent = self.parent.pop(block)
            del self.used[block], self.children[block]
            if parent is not None:
                self.children[parent] -= 1
                if self.children[parent] == 0:
                    heapq.heappush(self.oldest, (self.used[parent], parent))
            return True
        return False

    def request(self, full):
        """(hit blocks, stored blocks) of one request."""
        self.now += 1
        path = full[:BLOCKS_ASKED_MAX]
        hits = 0
        while hits < len(path) and path[hits] in self.used:
            self._touch(path[hits])
            hits += 1
        stored = 0
        for i in range(hits, len(path)):
            if len(self.used) == self.slots and not self._evict():
                break
            parent = path[i - 1] if i > 0 else None
            self.parent[path[i]] = parent
            self.children[path[i]] = 0
            if parent is not None:
                self.children[parent] += 1
            self._touch(path[i])
            stored += 1
        return hits, stored


def replay(requests, fraction):
    """What kvist-replay should count."""
    cache = LruLeafCache(slots_of(requests, fraction))
    hits = stored = 0
    for _, full in requests:
        hit, store = cache.request(full)
        hits += hit
        stored += store
    return {"requests": len(requests), "blocks": sum(listed for listed, _ in requests), "hit_blocks": hits, "stored_blocks": stored}
