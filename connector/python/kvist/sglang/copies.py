"""Loads and stores of the tree's pages: each is one operation for every group of the space."""

from array import array

from kvist.client import Client, Result
from kvist.status import KvistError, Status


class Copy:
    """failed: it didn't end well, or couldn't begin. refused: chunks of a store that kvistd had no room for, or no parent."""

    __slots__ = ("failed", "ops", "pending", "refused")

    def __init__(self) -> None:
        self.ops: list[int] = []  # those whose pages kvistd may still use
        self.pending = True
        self.failed = False
        self.refused = False

    @property
    def quiet(self) -> bool:
        """Nothing touches the pages any more."""
        return not self.ops


class Copies:
    """Begins copies and hears of their end; nothing here waits but `wait`. Used by one thread."""

    def __init__(self, client: Client, *, load_timeout_s: float, store_timeout_s: float) -> None:
        self._client = client
        self._load_timeout_s = load_timeout_s
        self._store_timeout_s = store_timeout_s

    def load(self, lease: int, pages: array, *, first_chunk: int, chunk_count: int) -> Copy:
        return self._begin(
            lambda group: self._client.load(
                lease,
                pages,
                first_chunk=first_chunk,
                chunk_count=chunk_count,
                group=group,
                deadline_s=self._load_timeout_s,
            )
        )

    def store(self, keys: bytes, pages: array, *, first_chunk: int) -> Copy:
        return self._begin(
            lambda group: self._client.store(
                keys, pages, first_chunk=first_chunk, group=group, deadline_s=self._store_timeout_s
            )
        )

    def _begin(self, start) -> Copy:
        copy = Copy()
        try:
            for group in range(len(self._client.space.groups)):
                copy.ops.append(start(group))
        except KvistError:
            self.give_up(copy)
        return copy

    def give_up(self, copy: Copy) -> None:
        copy.failed = True
        for op in copy.ops:
            self._client.cancel(op)

    def look(self, copy: Copy) -> None:
        """Takes in what has ended."""
        failed = copy.failed
        results = [(op, self._client.poll(op)) for op in copy.ops]
        self._take(copy, results)
        if copy.pending and copy.failed and not failed:
            self.give_up(copy)

    def wait(self, copy: Copy, timeout_s: float) -> None:
        """Until it is quiet; at most `timeout_s` for each of its operations."""
        self._take(copy, [(op, self._client.wait(op, timeout_s)) for op in copy.ops])

    def _take(self, copy: Copy, results: list[tuple[int, Result]]) -> None:
        copy.pending = any(result.status == Status.PENDING for _, result in results)
        copy.ops = [op for op, result in results if result.status == Status.PENDING or not result.pages_released]
        for _, result in results:
            copy.failed |= result.status not in (Status.PENDING, Status.OK)
            copy.refused |= result.chunks_refused > 0
