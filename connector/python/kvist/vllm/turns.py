"""Which requests a step has to look at: only those whose next chunk it may fill.

A request that decodes gets at most so many tokens in a step, so for some steps its chunk can't be full; one that gets more (a prompt's) is looked
at in each of them. Of 64 that decode, chunks of 256 tokens, each looked at twice a chunk, that is one in two steps instead of 64 in each: to read what each has
computed takes 20 us where the step before has filled the caches with other things. With recurrent layers none of these may be missed: the state at
a chunk's end is there for two steps.
"""

from collections import deque

from kvist.vllm.tracked import Tracked


# A turn that has waited for so many steps comes, whatever else a step has to do: where each step has prompts' chunks to store, one that decodes
# would end before its last chunk is stored.
_LATE_STEPS = 8


class Turns:
    """A request has one turn at most, the last that it was given. Turns whose step had no time for them are next in the following ones."""

    def __init__(self, decoded: int) -> None:
        """decoded: tokens that a request which decodes gets in a step at most. A wrong number costs time, nothing else."""
        self._decoded = decoded
        self._step = 0
        self._ids: dict[int, list[str]] = {}  # [step]
        self._due: deque[tuple[str, int]] = deque()  # request, step in which its turn was

    def next(self, tracked: Tracked, missing: int = 0) -> None:
        """Its turn is when it may have got `missing` tokens more, in the next step at the earliest."""
        step = tracked.turn = self._step + max(1, -(-missing // self._decoded))
        self._ids.setdefault(step, []).append(tracked.request.request_id)

    def begin_step(self, scheduled: dict[str, int], total: int, requests: dict[str, Tracked]) -> list[Tracked]:
        """A step of so many tokens of each request, `total` in all: those that get a prompt's, whose turn is now in any case."""
        self._step += 1
        decoded = self._decoded
        many: list[str] = []
        if total > len(scheduled):
            many = [request_id for request_id, tokens in scheduled.items() if tokens > decoded]
        step = self._step
        self._due.extend((request_id, step) for request_id in self._ids.pop(step, ()))
        return [requests[request_id] for request_id in many if request_id in requests]

    @property
    def waiting(self) -> int:
        """Turns whose step had no time for them."""
        return len(self._due)

    def take(self, requests: dict[str, Tracked], only_late: bool) -> Tracked | None:
        """The next of those that decode, or of those that have waited for long; None: no such turn is left."""
        while self._due and not (only_late and self._step - self._due[0][1] < _LATE_STEPS):
            request_id, step = self._due.popleft()
            tracked = requests.get(request_id)
            if tracked is not None and tracked.turn == step:
                return tracked
        return None
