"""What can be set in SGLang's extra config. Names and values are checked: a misspelt `namespace` would share what it should part."""

import dataclasses
from typing import Any

WANTED = (
    '--hicache-storage-backend-extra-config \'{"backend_name": "kvist", "module_path": "kvist.sglang", "class_name": "KvistStorage", '
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
_TEXTS = ("socket", "namespace", "weights")


@dataclasses.dataclass(frozen=True)
class Settings:
    """
    socket             kvistd's engine socket; none: $KVIST_SOCKET, else this user's own kvistd, else the system's
    namespace          engines with different ones share nothing
    weights            names the model's weights where the files can't tell (copies of them on other nodes, weights changed in place); else
                       their names, sizes and times do
    deadline_s         a copy of up to 128 pages that takes longer is given up: those pages are misses, or not stored. The same for a
                       lookup, at most 1 s
    connect_timeout_s  how long the start waits for kvistd; it goes on without, too
    """

    socket: str | None = None
    namespace: str = ""
    weights: str | None = None
    deadline_s: float = 5.0
    connect_timeout_s: float = 1.0

    @property
    def lookup_s(self) -> float:
        return min(self.deadline_s, 1.0)

    @staticmethod
    def of(extra_config: dict[str, Any] | None) -> "Settings":
        given = {name: value for name, value in (extra_config or {}).items() if name not in _ENGINES}
        known = [field.name for field in dataclasses.fields(Settings)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ValueError(
                f"SGLang's extra config has {', '.join(unknown)}, which kvist doesn't know; it knows {', '.join(known)}"
            )
        for name, value in given.items():
            if name in _TEXTS:
                wanted = None if isinstance(value, str) and len(value.encode()) <= 200 else "a text of at most 200 bytes"
            else:
                number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0.001 <= value <= 3600
                wanted = None if number else "seconds, 0.001 to 3600"
            if wanted is not None:
                raise ValueError(f"{name} in SGLang's extra config is {value!r}; wanted is {wanted}")
        return Settings(**given)
