"""What kvist's calls answer."""

import enum


class Status(enum.IntEnum):
    """A `kvist_status`; kvist.h says of each what the caller does."""

    OK = 0
    PENDING = 1
    INVALID_ARGUMENT = 2
    FAILED_PRECONDITION = 3
    RESOURCE_EXHAUSTED = 4
    UNAVAILABLE = 5
    DEADLINE_EXCEEDED = 6
    ABORTED = 7
    CANCELLED = 8
    PERMISSION_DENIED = 9
    DATA_LOSS = 10
    INTERNAL = 11


class KvistError(Exception):
    """A call that could not do what was asked. `status` says what kind of reason, the message what was wanted, found, and to be done."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(f"{status.name}: {message}")
        self.status = status
        self.message = message
