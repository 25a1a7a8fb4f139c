"""The rules of scenarios.py: kvist keeps them; the reference connector keeps them; with its bug planted each is seen to be broken."""

import contextlib

import pytest
import reference
from scenarios import SCENARIOS
from settings import Shape


class KvistWorld:
    """Engines with kvist; copies are late while kvistd stands."""

    def __init__(self, daemon, ledger, start) -> None:
        self.daemon = daemon
        self.ledger = ledger
        self.start = lambda shape=Shape(): start(daemon, shape, lookup_timeout_s=2.0)
        self._held = False

    @contextlib.contextmanager
    def late(self):
        try:
            yield
        finally:
            self.resume()

    def hold(self) -> None:
        """From here on kvistd carries nothing; the lookups that were begun have been answered."""
        asked = self.ledger.lookups
        self.daemon.wait_status(lambda status: status["lookups"] >= asked)
        self.daemon.pause()
        self._held = True

    def resume(self) -> None:
        if self._held:
            self.daemon.resume()
            self._held = False

    def settle(self, engine) -> None:
        engine.settle(self.ledger)

    def lose_all(self) -> None:
        """What was promised can't be loaded, what is computed can be stored."""
        sessions = self.daemon.status()["sessions"]
        self.daemon.kill()
        self.daemon.start()
        self.daemon.wait_status(lambda status: status["sessions"] == sessions)

    def no_leases(self) -> None:
        assert not self.ledger.leases
        self.daemon.wait_idle()

    def loads(self, engine) -> int:
        return sum(1 for call in self.ledger.calls if call.name == "load")

    def chunks_are(self, count: int) -> None:
        assert self.daemon.wait_idle()["chunks_stored"] == count


class ReferenceWorld:
    """Engines with reference.py's connector, whose copies are always late."""

    def __init__(self, start_reference, bug: str) -> None:
        self._begin = start_reference
        self._bug = bug
        self.late = contextlib.nullcontext

    def start(self, shape: Shape = Shape()):
        return self._begin(shape, break_it=self._bug, slow=6)

    def hold(self) -> None:
        pass

    def settle(self, engine) -> None:
        for _ in range(20):  # its late copies, also of requests that are gone
            engine.step()
        engine.settle()

    def lose_all(self) -> None:
        reference.STORE.clear()

    def no_leases(self) -> None:
        assert not reference.LEASES

    def loads(self, engine) -> int:
        return len(engine.workers[0].connector.loads_begun)

    def chunks_are(self, count: int) -> None:
        assert len(reference.STORE) == count


@pytest.mark.parametrize("rule", SCENARIOS)
def test_kvist_keeps(rule, daemon, ledger, start):
    SCENARIOS[rule](KvistWorld(daemon, ledger, start))


@pytest.mark.parametrize("rule", SCENARIOS)
def test_reference_keeps(rule, start_reference):
    SCENARIOS[rule](ReferenceWorld(start_reference, ""))


@pytest.mark.parametrize("rule", SCENARIOS)
def test_broken_is_seen(rule, start_reference):
    with pytest.raises((AssertionError, KeyError)) as seen:
        SCENARIOS[rule](ReferenceWorld(start_reference, rule))
    place = seen.traceback[-1]
    print(f"{rule}: {seen.typename} in {place.path.name}:{place.lineno + 1} {place.name}: {seen.value}")
