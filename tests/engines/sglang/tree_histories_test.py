"""Random histories of the radix cache: shared prefixes, salts, adapters, chunked prefill, decoding, aborts, retractions, evictions, flushes, and
a kvistd that is killed, stopped and cleared. Each step checks what attention would read and SGLang's accounting of its pool; the end checks every
page of the tree.

A failure prints KVIST_SEED; with it the history is played again (kvistd's timing is not in the seed). KVIST_HISTORIES=100 plays more.
"""

import os
import random
from collections import Counter

import pytest
from kvist_daemon import Daemon
from pools import wait_for
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from tree_engine import TreeEngine

NAMESPACES = [{}, {}, {"salt": "a"}, {"salt": "b"}, {"lora": "a"}, {"salt": "a", "lora": "a"}, {"extra_key": "x"}]
SHAPES = {
    "mha": {"kind": "mha", "page": 4, "chunk": 8},
    "mla": {"kind": "mla", "page": 4, "chunk": 16},
    "pages of one token": {"kind": "mha", "page": 1, "chunk": 8},
    "large chunks": {"kind": "mha", "page": 4, "chunk": 32, "prefill": 20},
}
SEEDS = [int(os.environ["KVIST_SEED"])] if "KVIST_SEED" in os.environ else range(int(os.environ.get("KVIST_HISTORIES", "3")))
STEPS = 400


class History:
    """Two engines over one kvistd, of which the first ends half-way and another takes its place."""

    def __init__(self, seed, shape, daemon):
        self.random = random.Random(seed)
        self.shape = shape
        self.daemon = daemon
        self.engines = [self._engine(), self._engine()]
        self.prompts = [self._tokens(self.random.randrange(20, 120)) for _ in range(4)]
        self.did: Counter = Counter()
        self.hurt: str | None = None  # how kvistd is kept from working now
        self.may_hurt = True

    def _engine(self):
        settings = {"lookup_timeout_s": 0.3, "load_timeout_s": 0.4, "store_timeout_s": 0.4}
        tokens = self.random.choice([192, 256, 384])
        engine = TreeEngine(self.daemon.socket, tokens=tokens, rows=8, **settings, **self.shape)
        begin = engine.tree.side._loads.begin

        def hurt_and_begin(*args):
            """An accident between a lookup and its load."""
            if self.may_hurt and self.random.random() < 0.15:
                self._hurt(engine)
            return begin(*args)

        engine.tree.side._loads.begin = hurt_and_begin
        return engine

    def _tokens(self, count):
        return [self.random.randrange(30000) for _ in range(count)]

    def _prompt(self):
        """Some of what was said before, and something new."""
        prompt = self.random.choice(self.prompts)
        tokens = prompt[: self.random.randrange(1, len(prompt) + 1)] + self._tokens(self.random.choice([0, 1, 3, 9, 30]))
        if self.random.random() < 0.5:
            self.prompts[self.random.randrange(len(self.prompts))] = tokens[:140]
        return tokens[:140]

    def play(self):
        for step in range(STEPS):
            engine = self.random.choice(self.engines)
            if step == STEPS // 2:
                self._replace()
            elif self.random.random() < 0.35 and len(engine.waiting) < 6:
                engine.add(self._prompt(), max_new=self.random.choice([1, 1, 5, 20, 60]), **self.random.choice(NAMESPACES))
            elif self.random.random() < 0.15:
                self.random.choice([self._abort, self._evict, self._hurt, self._flush])(engine)
            else:
                engine.step()
        for engine in self.engines:
            self._end(engine)
        self.daemon.wait_idle(sessions=0)

    def _replace(self):
        self._end(self.engines[0])
        self.engines[0] = self._engine()

    def _end(self, engine):
        self._heal()
        self.may_hurt = False
        engine.run()
        self.did.update(engine.counts)
        self.did["retracted"] += engine.retracted
        self.did["starved"] += engine.starved
        engine.close()
        self.may_hurt = True

    def _abort(self, engine):
        requests = [*engine.waiting, *engine.running, *([engine.chunked] if engine.chunked else [])]
        if requests:
            engine.abort(self.random.choice(requests))
            engine.check()
            self.did["aborts"] += 1

    def _evict(self, engine):
        engine.tree.evict(EvictParams(num_tokens=self.random.randrange(1, 200)))
        engine.check()

    def _flush(self, engine):
        if not (engine.running or engine.waiting or engine.chunked) and self.random.random() < 0.3:
            self._heal()
            engine.flush()
            engine.finished.clear()
            self.did["flushes"] += 1

    def _hurt(self, _engine):
        how = self.random.choice(["kill", "pause", "pause", "clear", "heal", "heal"])
        if how == "heal" or self.hurt:
            self._heal()
            return
        getattr(self.daemon, how)()
        self.hurt = None if how == "clear" else how
        self.did[how] += 1

    def _heal(self):
        if self.hurt == "pause":
            self.daemon.resume()
        elif self.hurt == "kill":
            self.daemon.start()
        self.hurt = None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history(seed, shape):
    print(f"KVIST_SEED={seed}")
    with Daemon(pool__bytes="8MiB") as daemon:
        history = History(seed, SHAPES[shape], daemon)
        try:
            history.play()
        finally:
            history._heal()
        print(f"  {shape}: {dict(history.did)}")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_in_which_nothing_goes_wrong_loads_what_was_stored(seed, monkeypatch):
    monkeypatch.setattr(History, "_hurt", lambda *_: None)
    with Daemon() as daemon:
        history = History(seed, SHAPES["mha"], daemon)
        history.play()
        wait_for(lambda: daemon.status()["sessions"] == 0)
    assert history.did["loads"] > 0 and history.did["stores"] > 0
    # A running request that needs their pages may end some.
    assert history.did["loads_failed"] * 5 <= history.did["loads"], history.did
    assert history.did["stores_failed"] * 5 <= history.did["stores"], history.did
