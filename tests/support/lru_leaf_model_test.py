#!/usr/bin/env python3
"""The model against cases that can be followed by hand, and against a slower one that looks at everything at every step."""

import random
import unittest

from lru_leaf_model import LruLeafCache


class SlowCache:
    """The same rules by exhaustive search: whole paths as names, every block looked at for every eviction."""

    def __init__(self, slots):
        self.slots = slots
        self.used = {}  # path -> when it was last used
        self.now = 0

    def request(self, full):
        self.now += 1
        path = [tuple(full[: i + 1]) for i in range(min(len(full), 4096))]
        hits = next((i for i, block in enumerate(path) if block not in self.used), len(path))
        for block in path[:hits]:
            self.used[block] = self.now
        for i in range(hits, len(path)):
            if len(self.used) == self.slots:
                with_child = {block[:-1] for block in self.used}
                leaves = [b for b in self.used if b not in with_child and b not in path]
                if not leaves:
                    return hits, i - hits
                del self.used[min(leaves, key=self.used.get)]
            self.used[path[i]] = self.now
        return hits, len(path) - hits


class LruLeafCacheTest(unittest.TestCase):
    def test_evicts_the_leaf_that_was_used_longest_ago(self):
        cache = LruLeafCache(3)
        self.assertEqual(cache.request([1, 2]), (0, 2))
        self.assertEqual(cache.request([1, 3]), (1, 1))
        self.assertEqual(cache.request([1, 4]), (1, 1))  # in place of 2, not of 1, which has children
        self.assertEqual(cache.request([1, 2]), (1, 1))  # in place of 3
        self.assertEqual(cache.request([1, 4]), (2, 0))

    def test_never_evicts_the_path_of_the_request(self):
        cache = LruLeafCache(3)
        self.assertEqual(cache.request([1, 2, 3, 4, 5]), (0, 3))
        self.assertEqual(cache.request([1, 2, 3, 4, 5]), (3, 0))
        self.assertEqual(cache.request([9]), (0, 1))
        self.assertEqual(cache.request([1, 2, 3]), (2, 1))

    def test_agrees_with_exhaustive_search(self):
        for seed in range(300):
            rng = random.Random(seed)
            slots = rng.randint(1, 12)
            fast, slow = LruLeafCache(slots), SlowCache(slots)
            paths = [[]]
            for _ in range(100):
                path = list(rng.choice(paths))
                path = path[: rng.randint(0, len(path))] + [rng.randrange(10**9) for _ in range(rng.randint(0, 4))]
                paths.append(path)
                self.assertEqual(fast.request(path), slow.request(path), f"seed {seed}")


if __name__ == "__main__":
    unittest.main()
