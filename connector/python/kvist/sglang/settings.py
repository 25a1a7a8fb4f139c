"""What can be set in SGLang's extra config, for the storage backend and for the radix cache. Names and values are checked: a misspelt
`namespace` would share what it should part."""

import dataclasses
import json
from typing import Any, TypeVar

import sglang

import kvist
from kvist.proven import refuse_others

WHERE = "--hicache-storage-backend-extra-config"
WANTED = (
    f'{WHERE} \'{{"backend_name": "kvist", "module_path": "kvist.sglang", "class_name": "KvistStorage", '
    '"interface_v1": 1, "allocator": "shm", "hicache_storage_pass_prefix_keys": true}\''
)

# SGLang's own, in the same dictionary.
_ENGINES = {
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "allocator",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "prefetch_timeout_max",
    "hicache_storage_pass_prefix_keys",
    "tp_lcm_size",
}
_T = TypeVar("_T", bound="_Common")
_TEXTS = ("socket", "namespace", "weights")
_SWITCHES = ("other_versions",)
_LEAST = {"chunk_tokens": 0, "load_min_tokens": 1}


@dataclasses.dataclass(frozen=True)
class _Common:
    """
    socket             kvistd's engine socket; none: $KVIST_SOCKET, else this user's own kvistd, else the system's
    namespace          engines with different ones share nothing
    weights            names the model's weights where the files can't tell (copies of them on other nodes, weights changed in place); else
                       their names, sizes and times do
    connect_timeout_s  how long the start waits for kvistd; it goes on without, too
    other_versions     true: starts with an SGLang that kvist wasn't tried with, too
    """

    socket: str | None = None
    namespace: str = ""
    weights: str | None = None
    connect_timeout_s: float = 1.0
    other_versions: bool = False

    def refuse_other_versions(self) -> None:
        """Raises ValueError for an SGLang that kvist wasn't tried with."""
        if not self.other_versions:
            refuse_others("SGLang", sglang.__version__, ("0.5.23",), f'"other_versions" in {WHERE}')


@dataclasses.dataclass(frozen=True)
class Settings(_Common):
    """Of the storage backend.

    deadline_s         a copy of up to 128 pages that takes longer is given up: those pages are misses, or not stored. The same for a
                       lookup, at most 1 s
    """

    deadline_s: float = 5.0

    @property
    def lookup_s(self) -> float:
        return min(self.deadline_s, 1.0)

    @staticmethod
    def of(extra_config: dict[str, Any] | None) -> "Settings":
        given = {name: value for name, value in (extra_config or {}).items() if name not in _ENGINES}
        return _checked(Settings, given, "SGLang's extra config", "kvist")


@dataclasses.dataclass(frozen=True)
class TreeSettings(_Common):
    """Of the radix cache.

    chunk_tokens       tokens of a chunk; raised to the next multiple of the page. Smaller ones lose fewer tail tokens, larger ones make
                       longer runs (0: 256)
    load_min_tokens    shorter hits are computed instead
    lookup_timeout_s   a lookup that isn't answered by then is a miss. Meanwhile no new request is admitted, the running ones run
    load_timeout_s     a load that takes longer is given up and computed instead. Meanwhile as above
    store_timeout_s    a store that takes longer is given up
    lease_s            how long a hit stays while its request waits to be admitted
    """

    chunk_tokens: int = 0
    load_min_tokens: int = 1
    lookup_timeout_s: float = 0.25
    load_timeout_s: float = 5.0
    store_timeout_s: float = 2.0
    lease_s: float = 30.0

    def chunk_tokens_of(self, page_tokens: int) -> int:
        wanted = self.chunk_tokens or kvist.default_chunk_tokens()
        return -(-wanted // page_tokens) * page_tokens

    @staticmethod
    def of(extra_config: str | None) -> "TreeSettings":
        """Of the JSON text that SGLang was started with."""
        try:
            given = json.loads(extra_config) if extra_config else {}
        except ValueError as error:
            raise ValueError(
                f"{WHERE} is no JSON ({error}); kvist's radix cache wants it on the command line, in no file"
            ) from error
        if not isinstance(given, dict):
            raise ValueError(f"{WHERE} is {given!r}; wanted is a JSON object")
        return _checked(TreeSettings, given, WHERE, "kvist's radix cache")


def _checked(kind: type[_T], given: dict[str, Any], where: str, who: str) -> _T:
    known = [field.name for field in dataclasses.fields(kind)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"{where} has {', '.join(unknown)}, which {who} doesn't know; it knows {', '.join(known)}")
    for name, value in given.items():
        wanted = _wanted(name, value)
        if wanted is not None:
            raise ValueError(f"{name} in {where} is {value!r}; wanted is {wanted}")
    return kind(**given)


def _wanted(name: str, value: Any) -> str | None:
    if name in _TEXTS:
        return None if isinstance(value, str) and len(value.encode()) <= 200 else "a text of at most 200 bytes"
    if name in _SWITCHES:
        return None if isinstance(value, bool) else "true or false"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in _LEAST:
        whole = number and isinstance(value, int) and value >= _LEAST[name]
        return None if whole else f"a whole number, at least {_LEAST[name]}"
    return None if number and 0.001 <= value <= 3600 else "seconds, 0.001 to 3600"
