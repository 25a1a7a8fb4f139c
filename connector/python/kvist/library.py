"""The one loaded libkvist, and its errors as exceptions."""

import functools

from kvist import _abi
from kvist.status import KvistError, Status


@functools.cache
def library() -> _abi.Library:
    return _abi.load()


def error(status: int) -> KvistError:
    """The last failure of this thread."""
    return KvistError(Status(status), library().error().decode(errors="replace"))


def check(status: int) -> None:
    if status != Status.OK:
        raise error(status)


def default_chunk_tokens() -> int:
    """Chunk size of new spaces when the engine has no wish, in tokens."""
    return library().default_chunk_tokens()
