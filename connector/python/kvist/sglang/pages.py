"""The pages of one host pool as chunks of kvistd: what is there, copy them in, copy them out."""

import contextlib
import logging
import threading
import time
from array import array
from collections.abc import Iterator

from kvist.client import Client, Connection, Result
from kvist.status import KvistError, Status

logger = logging.getLogger(__name__)

KEY_BYTES = 32
# Pages of one copy, and keys of one lookup. The first is what SGLang asks for at once; both keep single events of kvistd short.
COPY_PAGES = 128
LOOKUP_KEYS = 1024
# After an answer that didn't come in time kvistd isn't asked for so long: SGLang's threads should miss quickly then.
_PAUSE_S = 1.0
_SAY_AGAIN_S = 30.0

_left_open: list[Client] = []  # sessions that a call still uses


class Pages:
    """One session with kvistd, and how SGLang's calls become its hooks.

    Order matters to what kvistd evicts first: of pages named in one call the first named goes first. A prompt without its first page is
    worth nothing, so pages are named from the last to the first, and those before them afterwards.

    Threads: any number of callers; each waits for its own copies. Errors: none leave a call; what can't be had is a miss.
    """

    def __init__(self, client: Client, *, deadline_s: float, lookup_s: float) -> None:
        """Takes the session over. `deadline_s` bounds each copy, `lookup_s` each lookup."""
        self._deadline_s = deadline_s
        self._lookup_s = lookup_s
        self._idle = threading.Condition()
        self._callers = 0  # guarded by _idle, as are the next three
        self._client: Client | None = client
        self._paused_until = 0.0
        self._away_said = False
        self._last_complaint = -_SAY_AGAIN_S
        self.seen_away = 0  # calls that found kvistd away or late
        self._report(client)

    # ---- what SGLang asks ----

    def present(self, keys: list[bytes], before: list[bytes]) -> int:
        """How many of `keys` are there, from the first on. `before`: the pages of the prompt before them, as far as known."""
        count = 0
        with self._using() as client:
            if client is not None:
                count = self._find(client, keys)
            if count > 0:
                self._touch(client, before + keys[:count])
        return count

    def present_each(self, keys: list[bytes]) -> list[bool]:
        """Which of `keys` are there; those not asked for within the deadline are not."""
        there = [False] * len(keys)
        until = time.monotonic() + self._deadline_s
        with self._using() as client:
            first = 0
            while client is not None and first < len(keys) and time.monotonic() < until:
                count = self._find(client, keys[first:])
                there[first : first + count] = [True] * count
                first += count + 1
        return there

    def load(self, keys: list[bytes], pages: list[int], before: list[bytes]) -> list[bool]:
        """Copies chunks into pages, [keys] each; those after the first miss are misses. Returns when nothing writes into the pages."""
        got = [False] * len(keys)
        with self._using() as client:
            if client is None:
                return got
            for first in range(0, len(keys), COPY_PAGES):
                part = keys[first : first + COPY_PAGES]
                count = self._load_run(client, part, pages[first : first + COPY_PAGES])
                got[first : first + count] = [True] * count
                if count < len(part):
                    break
            if before:
                self._touch(client, before)
        return got

    def store(self, keys: list[bytes], pages: list[int], before: list[bytes]) -> list[bool]:
        """Copies pages into chunks, [keys] each. Nothing reads the pages any more when it returns."""
        done = [False] * len(keys)
        with self._using() as client:
            if client is None:
                return done
            for first in range(0, len(keys), COPY_PAGES):
                part = keys[first : first + COPY_PAGES]
                if not self._store_run(client, part, pages[first : first + COPY_PAGES]):
                    break
                done[first : first + len(part)] = [True] * len(part)
            if before:
                self._touch(client, before)
        return done

    # ---- lifecycle ----

    def close(self) -> None:
        """Ends the session when the calls under way have returned; those that follow are misses.

        A load that a stopped kvistd doesn't end keeps the session open, for the process's end to close.
        """
        with self._idle:
            client, self._client = self._client, None
            quiet = self._idle.wait_for(lambda: self._callers == 0, 2 * self._deadline_s + _PAUSE_S)
        if client is None:
            return
        if quiet:
            client.close()
        else:
            _left_open.append(client)
            logger.warning("kvist: a load hasn't ended, for kvistd has stopped in the middle of it; its session stays open")

    @property
    def connected(self) -> bool:
        with self._idle:
            return self._client is not None and self._client.connection == Connection.CONNECTED

    # ---- within ----

    @contextlib.contextmanager
    def _using(self) -> Iterator[Client | None]:
        """The session for one call; None while there is none to ask."""
        with self._idle:
            client = self._client if time.monotonic() >= self._paused_until else None
            if client is None:
                self.seen_away += 1
            else:
                self._callers += 1
        try:
            yield client
        except KvistError as error:  # the caller's default stands: a miss
            self._failed(error.status, error.message)
        finally:
            if client is not None:
                self._report(client)
                with self._idle:
                    self._callers -= 1
                    self._idle.notify_all()

    def _find(self, client: Client, keys: list[bytes]) -> int:
        count = 0
        for first in range(0, len(keys), LOOKUP_KEYS):
            part = keys[first : first + LOOKUP_KEYS]
            hit = client.lookup(b"".join(part), deadline_s=self._lookup_s)
            if hit.status != Status.OK:
                raise KvistError(hit.status, "a lookup failed")
            count += hit.chunks
            if hit.chunks < len(part):
                break
        return count

    def _touch(self, client: Client, keys: list[bytes]) -> None:
        for last in range(len(keys), 0, -LOOKUP_KEYS):
            client.lookup(b"".join(reversed(keys[max(0, last - LOOKUP_KEYS) : last])), deadline_s=self._lookup_s)

    def _load_run(self, client: Client, keys: list[bytes], pages: list[int]) -> int:
        count = self._find(client, keys)
        while count > 0:
            hit = client.lookup(
                b"".join(reversed(keys[:count])), lease_s=self._deadline_s + self._lookup_s, deadline_s=self._lookup_s
            )
            if hit.status != Status.OK:
                raise KvistError(hit.status, "a lookup failed")
            if hit.lease != 0 and hit.chunks == count:
                break
            if hit.lease != 0:
                client.release(hit.lease)
                # One was evicted in between; or kvistd leaves some to whoever computes them sooner than they are read.
                found = self._find(client, keys[:count])
                count = found if found < count else count // 2
            else:
                count //= 2  # more than this engine may lease at once
        if count == 0:
            return 0
        try:
            op = client.load(hit.lease, array("I", reversed(pages[:count])), chunk_count=count, deadline_s=self._deadline_s)
            result = self._end_of_load(client, op)
        finally:
            client.release(hit.lease)
        if result.status != Status.OK:
            self._failed(result.status, f"a load of {count} pages failed")
            return 0
        return count

    def _end_of_load(self, client: Client, op: int) -> Result:
        """A load that is late is waited for all the same: until kvistd is done with the pages, or gone, they can't be given back."""
        result = client.wait(op, self._deadline_s)
        said = time.monotonic()
        while result.status == Status.PENDING or not result.pages_released:
            if time.monotonic() - said > _SAY_AGAIN_S:
                said = time.monotonic()
                logger.warning(
                    "kvist: kvistd has stopped in the middle of a load; SGLang's prefetching waits for it to go on or to end"
                )
            result = client.wait(op, 1.0)
        return result

    def _store_run(self, client: Client, keys: list[bytes], pages: list[int]) -> bool:
        op = client.store(b"".join(reversed(keys)), array("I", reversed(pages)), deadline_s=self._deadline_s)
        result = client.wait(op, self._deadline_s)
        if result.status == Status.PENDING:
            client.cancel(op)
        while result.status == Status.PENDING or not result.pages_released:
            result = client.wait(op, 1.0)
        if result.status != Status.OK:
            self._failed(result.status, f"a store of {len(keys)} pages failed")
        return result.status == Status.OK and result.chunks_refused == 0

    def _failed(self, status: Status, what: str) -> None:
        now = time.monotonic()
        with self._idle:
            self.seen_away += 1
            if status == Status.DEADLINE_EXCEEDED:
                self._paused_until = now + _PAUSE_S
            say = status != Status.UNAVAILABLE and now - self._last_complaint >= _SAY_AGAIN_S
            if say:
                self._last_complaint = now
        if say:
            logger.warning("kvist: %s (%s): SGLang goes on without", what, status.name)

    def _report(self, client: Client) -> None:
        """Says once that kvistd is away, and once that it is back."""
        connection = client.connection
        away = connection != Connection.CONNECTED
        with self._idle:
            changed, self._away_said = away != self._away_said, away
        if changed and away:
            logger.warning(
                "kvist: kvistd is %s: nothing is found or kept until it is back (looked for by itself)",
                "not there" if connection == Connection.RECONNECTING else "there but refuses this engine (see its log)",
            )
        elif changed:
            logger.info("kvist: kvistd is back")
