"""What a connector owes kvistd: every operation asked for until its end, every lease released. Watches kvist.Client's methods."""

import dataclasses
import functools
import threading
import time

from kvist.client import Client
from kvist.status import Status


@dataclasses.dataclass
class Call:
    """One call of a kvist.Client method that returned."""

    name: str
    arguments: dict
    result: object


class Ledger:
    """A context manager; while it is entered all clients of this process are watched.

    ops      {(client, op): its call} begun, and not yet asked for until the end
    leases   {lease: the call that gave it}
    calls    all calls of load and store, in order
    lookups  how many have been begun
    """

    def __init__(self) -> None:
        self.ops: dict[tuple[int, int], Call] = {}
        self.leases: dict[int, Call] = {}
        self.calls: list[Call] = []
        self.lookups = 0
        self._lock = threading.Lock()
        self._real: dict[str, object] = {}

    def __enter__(self) -> "Ledger":
        for name in (
            "load",
            "store",
            "lookup",
            "lookup_start",
            "lookup_result",
            "poll",
            "wait",
            "cancel",
            "release",
            "close",
        ):
            self._real[name] = real = getattr(Client, name)
            setattr(Client, name, self._watched(name, real))
        return self

    def __exit__(self, *_) -> None:
        for name, real in self._real.items():
            setattr(Client, name, real)

    def _watched(self, name: str, real):
        note = getattr(self, f"_{name}")

        @functools.wraps(real)
        def call(client, *arguments, **named):
            result = real(client, *arguments, **named)
            with self._lock:
                note(client, Call(name, {"positional": arguments, **named}, result))
            return result

        return call

    def _begun(self, client, call: Call) -> None:
        self.ops[id(client), call.result] = call

    def _load(self, client, call: Call) -> None:
        self._begun(client, call)
        self.calls.append(call)

    _store = _load

    def _lookup_start(self, client, call: Call) -> None:
        self._begun(client, call)
        self.lookups += 1

    def _leased(self, call: Call) -> None:
        if call.result is not None and call.result.lease:
            self.leases[call.result.lease] = call

    def _lookup(self, _client, call: Call) -> None:
        self._leased(call)
        self.lookups += 1

    def _lookup_result(self, client, call: Call) -> None:
        if call.result is not None:
            self.ops.pop((id(client), call.arguments["positional"][0]), None)
            self._leased(call)

    def _poll(self, client, call: Call) -> None:
        if call.result.status != Status.PENDING and call.result.pages_released:
            self.ops.pop((id(client), call.arguments["positional"][0]), None)

    _wait = _poll

    def _cancel(self, client, call: Call) -> None:
        """A lookup is over then; a copy is still asked for."""
        key = (id(client), call.arguments["positional"][0])
        if key in self.ops and self.ops[key].name == "lookup_start":
            del self.ops[key]

    def _release(self, _client, call: Call) -> None:
        self.leases.pop(call.arguments["positional"][0], None)

    def _close(self, client, _call: Call) -> None:
        for key in [key for key in self.ops if key[0] == id(client)]:
            del self.ops[key]

    def settle(self, step, limit_s: float = 20.0) -> None:
        """Calls `step` until nothing is owed; raises with what is owed after `limit_s`."""
        end = time.monotonic() + limit_s
        while self.ops or self.leases:
            if time.monotonic() > end:
                raise AssertionError(f"never ended: ops {list(self.ops.values())}, leases {self.leases}")
            step()
            time.sleep(0.002)
