"""Random histories of an engine: what clients, vLLM's scheduler and an unlucky machine can do, from one seed."""

import dataclasses
import os
import random
import time

from contents import Identity
from engine import Engine
from settings import VOCABULARY

HISTORIES = int(os.environ.get("KVIST_HISTORIES", "3"))
SEED = int(os.environ["KVIST_SEED"]) if "KVIST_SEED" in os.environ else None


def seeds() -> list[int]:
    """$KVIST_SEED, else $KVIST_HISTORIES many of this day and run."""
    if SEED is not None:
        return [SEED]
    first = int(time.time()) % 1_000_000
    return [first + i for i in range(HISTORIES)]


@dataclasses.dataclass(frozen=True)
class Faults:
    """How often each accident comes, of 1000 steps."""

    pause: int = 0  # kvistd stands for a few steps
    kill: int = 0  # kvistd dies; a new one starts some steps later
    stop: int = 0  # the same, but it is asked to
    clear: int = 0


class Tokens:
    """Prompts that share prefixes, salts, adapters and images in all combinations."""

    def __init__(self, rng: random.Random, longest: int) -> None:
        self._rng = rng
        self._longest = longest
        self._trunks = [self._some(rng.randrange(40, longest)) for _ in range(4)]
        self._identities = [Identity()] * 4 + [
            Identity(salt="a"),
            Identity(salt="b"),
            Identity(lora="x"),
            Identity(lora="y", salt="a"),
            Identity(images=(("cat", 20, 30),)),
            Identity(images=(("dog", 20, 30),)),
            Identity(images=(("cow", 20, 8), ("dog", 60, 20))),
        ]

    def _some(self, count: int) -> list[int]:
        return [self._rng.randrange(3, VOCABULARY) for _ in range(count)]

    def prompt(self) -> tuple[list[int], Identity]:
        rng = self._rng
        trunk = rng.choice(self._trunks)
        tokens = trunk[: rng.randrange(1, len(trunk) + 1)] + self._some(rng.choice((0, 1, 5, 40)))
        identity = rng.choice(self._identities)
        tokens = tokens[: self._longest] or self._some(1)
        ends = [first + count for _, first, count in identity.images]
        if ends and max(ends) > len(tokens):
            identity = dataclasses.replace(identity, images=())
        return tokens, identity


class History:
    """Plays `steps` steps on an engine (or several that share one kvistd) and brings it to rest: then no request said anything else than
    the same prompt did another time, and nothing is left anywhere."""

    def __init__(
        self, seed: int, engines: list[Engine], ledger, daemon, faults: Faults = Faults(), longest: int = 300
    ) -> None:
        self.rng = random.Random(seed)
        self.engines = engines
        self.ledger = ledger
        self.daemon = daemon
        self.faults = faults
        self.tokens = Tokens(self.rng, longest)
        self.asked: list[tuple[Engine, str]] = []
        self._resume_at = self._start_at = 0
        self.counts = {
            name: 0 for name in ("added", "aborted", "preempted", "loaded", "resets", "paused", "killed", "stopped", "failed")
        }
        for engine in engines:
            if engine.shape.drafts:
                engine.make_draft = self._draft

    def _draft(self, request, right: list[int]) -> list[int]:
        rng = self.rng
        cut = rng.randrange(len(right) + 1)
        return right[:cut] + [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(len(right) - cut + 1))]

    def play(self, steps: int) -> None:
        for number in range(steps):
            self._accidents(number)
            for engine in self.engines:
                self._clients(engine)
                output = engine.step()
                self.counts["preempted"] += len(output.preempted_req_ids or ())
                self.counts["failed"] += len(engine.last_connector_output.failed_recving)
            if self._resume_at or not output.total_num_scheduled_tokens:
                time.sleep(0.0005)

    def _clients(self, engine: Engine) -> None:
        rng = self.rng
        live = list(engine.scheduler.requests.values())
        if rng.random() < 0.35 and len(live) < 12:
            tokens, identity = self.tokens.prompt()
            skip = True if rng.random() < 0.05 else None
            self.asked.append((engine, self._add(engine, tokens, identity, skip)))
            self.counts["added"] += 1
        if live and rng.random() < 0.06:
            engine.abort(rng.choice(live).request_id)
            self.counts["aborted"] += 1
        if rng.random() < 0.02:
            # vLLM itself raises when requests that don't run have blocks: loads under way, or done and not yet resumed; of those, too, that were
            # aborted just now.
            idle = not engine.scheduler.kv_holding_waiting and len(engine.scheduler.requests) == len(
                engine.scheduler.running
            ) + len(engine.scheduler.waiting)
            idle = idle and not any(call.name == "load" for call in self.ledger.ops.values())
            # With the second runner stores hold blocks, too.
            idle = idle and not (engine.shape.second_runner and engine.connector._scheduler._stores._storing)
            engine.scheduler.reset_prefix_cache(reset_running_requests=idle)
            self.counts["resets"] += 1

    def _add(self, engine: Engine, tokens: list[int], identity: Identity, skip: bool | None) -> str:
        rng = self.rng
        return engine.add(
            tokens, identity=identity, max_tokens=rng.choice((1, 4, 30)), skip_reading=skip, priority=rng.randrange(3)
        )

    def _accidents(self, number: int) -> None:
        daemon, rng = self.daemon, self.rng
        if self._resume_at and number >= self._resume_at:
            daemon.resume()
            self._resume_at = 0
        if self._start_at and number >= self._start_at:
            daemon.start()
            self._start_at = 0
        if self._resume_at or self._start_at:
            return
        die = rng.randrange(1000)
        if die < self.faults.pause:
            daemon.pause()
            self._resume_at = number + rng.randrange(1, 12)
            self.counts["paused"] += 1
        elif die < self.faults.pause + self.faults.kill:
            daemon.kill()
            self._start_at = number + rng.randrange(1, 30)
            self.counts["killed"] += 1
        elif die < self.faults.pause + self.faults.kill + self.faults.stop:
            daemon.stop()
            self._start_at = number + rng.randrange(1, 30)
            self.counts["stopped"] += 1
        elif die < self.faults.pause + self.faults.kill + self.faults.stop + self.faults.clear:
            daemon.clear()

    def rest(self) -> None:
        """Everything mended, everything finished, nothing owed."""
        if self._resume_at:
            self.daemon.resume()
        if self._start_at:
            self.daemon.start()
        self._resume_at = self._start_at = 0
        for engine in self.engines:
            engine.run()
        self.ledger.settle(lambda: [engine.step() for engine in self.engines])
        for engine in self.engines:
            engine.settle()
            self.counts["loaded"] += engine.loaded_tokens()
        self.daemon.wait_idle()
        self._compare_answers()

    def _compare_answers(self) -> None:
        answers: dict[tuple, list[int]] = {}
        for engine, request_id in self.asked:
            request = engine.requests[request_id]
            names = engine.names[request_id].of(list(request.prompt_token_ids))
            said = engine.outputs.get(request_id, [])
            before = answers.setdefault(names[-1], said)
            shorter = min(len(before), len(said))
            assert before[:shorter] == said[:shorter], f"{request_id} said {said}, the same prompt said {before}"
            if len(said) > len(before):
                answers[names[-1]] = said
