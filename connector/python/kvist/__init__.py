"""kvist for Python: a thin face of the C ABI in kvist.h, which has the promises and says what each call means.

`kvist.vllm` and `kvist.sglang` are the connectors of those engines; they import their engine, this module imports nothing.
"""

from kvist.chain import Chain
from kvist.client import (
    ALL_LAYERS,
    LAYERS,
    NO_PAGE,
    WHERE_KEYS_MAX,
    After,
    Client,
    Connection,
    ExpectedReuse,
    Hit,
    Result,
    StopReason,
    Tier,
)
from kvist.describe import Group, GroupKind, GroupPages, Memory, Role, Space, WritePage
from kvist.library import default_chunk_tokens
from kvist.status import KvistError, Status

__all__ = [
    "ALL_LAYERS",
    "LAYERS",
    "NO_PAGE",
    "WHERE_KEYS_MAX",
    "After",
    "Chain",
    "Client",
    "Connection",
    "ExpectedReuse",
    "Group",
    "GroupKind",
    "GroupPages",
    "Hit",
    "KvistError",
    "Memory",
    "Result",
    "Role",
    "Space",
    "Status",
    "StopReason",
    "Tier",
    "WritePage",
    "default_chunk_tokens",
]
