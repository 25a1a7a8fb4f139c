"""Whether a daemon hangs, by its answers to lookups."""

import time

# After so many in a row that weren't answered in time, so long everything is a miss: a daemon that hangs delays few requests. One alone can be
# late on a busy machine.
_LATE_MOST = 2
_PAUSE_S = 1.0


class HangWatch:
    """Asked before each lookup, and told of each answer."""

    def __init__(self) -> None:
        self._late = 0  # in a row
        self._until = 0.0

    def hangs(self) -> bool:
        return time.monotonic() < self._until

    def answered(self, in_time: bool) -> None:
        self._late = 0 if in_time else self._late + 1
        if self._late >= _LATE_MOST:
            self._late = 0
            self._until = time.monotonic() + _PAUSE_S
