"""What KV events tell, by a model: random changes of what kvistd has, whoever makes them, and a router that is strict.

Chunks are of a tree; two keys may be the same blocks to the engine, as where it doesn't hash what kvist's keys bind.
"""

import os
import random
from array import array

import pytest
from kvist import KvistError, Status, Tier, placements
from kvist.hangs import HangWatch
from kvist.placements import PlacedChunk, Placements

SEEDS = int(os.environ.get("KVIST_HISTORIES", "40"))
PER_CHUNK = 3  # blocks


class Node:
    """A chunk of the tree. name: equal for those that are the same blocks."""

    def __init__(self, key: bytes, name: str, parent: "Node | None") -> None:
        self.key, self.name, self.parent = key, name, parent
        self.hashes = [f"{name}.{block}" for block in range(PER_CHUNK)]

    def path(self) -> list["Node"]:
        path, node = [], self
        while node is not None:
            path.append(node)
            node = node.parent
        return path[::-1]


class Prompt:
    """As placements.Prompt."""

    def __init__(self, node: Node) -> None:
        self.nodes = node.path()

    def keys(self, first, until):
        return b"".join(node.key for node in self.nodes[first:until])

    def chunk(self, number, age, before):
        node = self.nodes[number]
        assert before is None or before.key == node.parent.key
        parent = node.parent.hashes[-1] if node.parent is not None else None
        return PlacedChunk(node.key, parent, node.hashes, array("I"), of=None, extra=None, age=age)


class Terms:
    def removed(self, tier, hashes):
        return ("removed", tier, list(hashes))

    def stored(self, run):
        assert run and all(chunk.tier == run[0].tier for chunk in run)
        return ("stored", run[0].tier, run[0].parent, [block for chunk in run for block in chunk.hashes])


class Kvistd:
    """As a Client: has [key] tiers. Answers come some questions later."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.has: dict[bytes, int] = {}
        self.away = self.slow = False
        self.asked: dict[int, bytes] = {}
        self.number = 0
        self.questions = 0

    def where_start(self, keys, group):
        if self.away:
            raise KvistError(Status.UNAVAILABLE, "away")
        self.number += 1
        self.asked[self.number] = keys
        self.questions += 1
        return self.number

    def where_result(self, op, count):
        if self.away:
            del self.asked[op]
            raise KvistError(Status.UNAVAILABLE, "away")
        if self.slow and self.rng.random() < 0.5:
            return None
        keys = self.asked.pop(op)
        assert len(keys) == 32 * count
        return bytes(self.has.get(keys[at : at + 32], 0) for at in range(0, len(keys), 32))

    def cancel(self, op):
        del self.asked[op]


class Router:
    def __init__(self) -> None:
        self.places: dict[str, set[Tier]] = {}
        self.cleared: set[str] = set()  # of what was told before, removals may come behind the clear

    def clear(self) -> None:
        self.cleared.update(self.places)
        self.places.clear()

    def hear(self, events) -> None:
        for kind, tier, *rest in events:
            if kind == "removed":
                for block in rest[0]:
                    known = self.places.get(block, set())
                    assert tier in known or block in self.cleared, f"{block} was never in {tier!r}"
                    known.discard(tier)
                continue
            parent, blocks = rest
            assert parent is None or self.places.get(parent), f"{blocks[0]} is told before {parent}"
            for block in blocks:
                assert tier not in self.places.get(block, ()), f"{block} is told twice"
                self.places.setdefault(block, set()).add(tier)


def fastest(tiers: int) -> Tier | None:
    return next((tier for tier in (Tier.IN_DRAM, Tier.ON_SSD, Tier.IN_REMOTE) if tiers & tier), None)


class World:
    def __init__(self, seed: int, nodes: int = 120) -> None:
        self.rng = rng = random.Random(seed)
        self.kvistd, self.router, self.watch = Kvistd(rng), Router(), HangWatch()
        self.placements = Placements(Terms(), 0)
        self.most = 0  # chunks that one step has told to have come
        self.nodes: list[Node] = []
        for number in range(nodes):
            parent = rng.choice(self.nodes) if self.nodes and rng.random() < 0.9 else None
            twin = self.nodes and rng.random() < 0.2 and rng.choice(self.nodes)
            same = twin and (twin.parent.name if twin.parent else None) == (parent.name if parent else None)
            name = twin.name if same else f"n{number}"
            self.nodes.append(Node(number.to_bytes(32, "big"), name, parent))
        self.known: set[bytes] = set()

    def step(self) -> None:
        events = self.placements.take(self.kvistd, self.watch)
        self.most = max(self.most, sum(len(event[-1]) for event in events if event[0] == "stored") // PER_CHUNK)
        self.router.hear(events)

    def act(self) -> None:
        rng, placed = self.rng, self.placements
        node = rng.choice(self.nodes)
        path = node.path()
        match rng.randrange(12):
            case 0 | 1 | 2 | 3:  # stored, from where kvistd has it on
                first = rng.randrange(len(path))
                for each in path[first:]:
                    self.kvistd.has[each.key] = self.kvistd.has.get(each.key, 0) | Tier.IN_DRAM
                placed.stored(Prompt(node), first, len(path), placed.age)
                self.known.update(each.key for each in path[first:])
            case 4 | 5:
                found = next((at for at, each in enumerate(path) if not self.kvistd.has.get(each.key)), len(path))
                placed.found(Prompt(node), found)
                self.known.update(each.key for each in path[:found])
            case 6 | 7 | 8 | 9:  # evicted, moved, found elsewhere
                self.kvistd.has[node.key] = rng.choice((0, 0, 1, 2, 3, 4, 5, 6, 7))
            case 10:
                self.kvistd.slow = rng.random() < 0.3
                self.kvistd.away = rng.random() < 0.2
            case 11 if rng.random() < 0.2:
                if rng.random() < 0.5:
                    self.router.clear()
                    placed.tell_again()
                else:
                    placed.forget_all(self.kvistd)
                    self.known.clear()

    def settle(self) -> None:
        self.kvistd.away = self.kvistd.slow = False
        for _ in range(3000):
            self.step()
        assert not self.wrong(), self.wrong()

    def wrong(self) -> list[str]:
        """Blocks of which the router believes what isn't so."""
        there: dict[str, set[Tier]] = {}  # [block] by the chunks that are known
        whole: dict[str, bool] = {}  # that have all that comes before them
        for node in self.nodes:
            tier = fastest(self.kvistd.has.get(node.key, 0)) if node.key in self.known else None
            if tier is not None:
                there.setdefault(node.name, set()).add(tier)
        for node in self.nodes:
            parent = node.parent
            whole[node.name] = bool(there.get(node.name)) and (parent is None or whole.get(parent.name, False))
        found = []
        for node in self.nodes:
            believed = [self.router.places.get(block, set()) for block in node.hashes]
            right = there.get(node.name, set())
            # What has lost something before it may be told or not.
            if any(each != right if whole[node.name] else each and each != right for each in believed):
                found.append(f"{node.name}: {believed}, is {right}, whole {whole[node.name]}")
        return found


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(placements, "_ROUND_S", 0.0)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_changes(seed, quick):
    world = World(seed)
    for _ in range(6):
        for _ in range(150):
            world.act()
            for _ in range(world.rng.randrange(3)):
                world.step()
        world.settle()
    world.placements.forget_all(world.kvistd)
    world.known.clear()
    world.settle()
    assert not any(world.router.places.values()) and not world.placements._told and not world.placements._at


def test_a_step_tells_a_part_of_what_has_come_back(quick, monkeypatch):
    monkeypatch.setattr(placements, "_SHARE", 0.0)
    world = World(1, nodes=1)
    chain = [world.nodes[0]]
    while len(chain) < 1000:
        chain.append(Node(len(chain).to_bytes(32, "big"), f"c{len(chain)}", chain[-1]))
    world.nodes = chain
    world.known = {node.key for node in chain}
    world.kvistd.has = dict.fromkeys(world.known, int(Tier.IN_DRAM))
    world.placements.found(Prompt(chain[-1]), len(chain))
    world.settle()
    world.kvistd.away = True
    for _ in range(1000):
        world.step()
    assert not any(world.router.places.values())
    world.most = 0
    world.settle()
    assert 0 < world.most <= 4 * 4  # so many of an answer, of so many questions


def test_what_has_much_to_tell_keeps_nobody_from_being_asked(monkeypatch):
    """Thousands of chunks have come back; of one that was told before, and is evicted, the router hears while they are told."""
    monkeypatch.setattr(placements, "_ROUND_S", 0.01)
    world = World(1, nodes=1)
    chain = [world.nodes[0]]
    while len(chain) < 6000:
        chain.append(Node(len(chain).to_bytes(32, "big"), f"c{len(chain)}", chain[-1]))
    world.kvistd.has = {node.key: int(Tier.IN_DRAM) for node in chain}
    early = Node(b"e" * 32, "early", None)
    world.kvistd.has[early.key] = int(Tier.IN_DRAM)
    world.placements.found(Prompt(early), 1)
    while not world.router.places.get("early.0"):
        world.step()
    world.placements.found(Prompt(chain[-1]), len(chain))
    while not world.router.places.get("c100.0"):
        world.step()
    world.kvistd.has[early.key] = 0
    for _ in range(4000):
        world.step()
        if not world.router.places["early.0"]:
            break
    told = sum(bool(places) for places in world.router.places.values()) // PER_CHUNK
    assert not world.router.places["early.0"] and told < 6000, told
