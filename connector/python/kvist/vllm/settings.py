"""What can be set under `kv_connector_extra_config`. Names and values are checked: a misspelt setting stops the start."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Settings:
    """
    socket            kvistd's engine socket; none: $KVIST_SOCKET, else this user's own kvistd, else the system's
    chunk_tokens      tokens of a chunk; raised to the next multiple of the model's block sizes. Smaller ones lose fewer tail tokens,
                      larger ones make longer runs (0: 256; with recurrent layers one block, at whose end vLLM keeps their states)
    store             eager: full chunks after each step; on_eviction: only what the block pool is about to reuse (not with recurrent
                      layers); never
    load              async: between steps, beside other requests; layerwise: inside the step, layer by layer: stalls the batch and
                      forces piecewise graphs, so for prefill nodes only; never
    load_min_tokens   shorter hits are computed instead
    lookup_timeout_s  a lookup that isn't answered by then is a miss. Meanwhile the request waits, the others run
    slow_timeout_s    so long a request waits, without blocks, for a hit that is on its way from a slower tier; then its load waits
    load_timeout_s    a load that takes longer is given up and computed instead
    store_timeout_s   a store that takes longer is given up
    lease_s           how long a hit stays while its request waits to be scheduled; asked again after half of it
    evict_ahead       on_eviction: blocks at the head of the pool's free queue that are stored before they can be reused; more cost the
                      scheduler time (0: two steps' worth, at most 512)
    weights           names the model's weights where the files can't tell (other replicas with copies of them); else their names, sizes
                      and times do
    other_versions    true: starts with a vLLM that the connector wasn't tried with, too
    """

    socket: str | None = None
    chunk_tokens: int = 0
    store: str = "eager"
    load: str = "async"
    load_min_tokens: int = 1
    lookup_timeout_s: float = 0.25
    slow_timeout_s: float = 1.0
    load_timeout_s: float = 5.0
    store_timeout_s: float = 2.0
    lease_s: float = 30.0
    evict_ahead: int = 0
    weights: str | None = None
    other_versions: bool = False

    @staticmethod
    def of(extra_config: dict[str, Any]) -> "Settings":
        fields = {field.name: field for field in dataclasses.fields(Settings)}
        unknown = sorted(set(extra_config) - set(fields))
        if unknown:
            raise ValueError(
                f"kv_connector_extra_config has {', '.join(unknown)}, which kvist doesn't know; it knows {', '.join(fields)}"
            )
        for name, value in extra_config.items():
            _check(name, value)
        return Settings(**extra_config)


_CHOICES = {"store": ("eager", "on_eviction", "never"), "load": ("async", "layerwise", "never")}
_TEXTS = ("socket", "weights")
_SWITCHES = ("other_versions",)
_LEAST = {"chunk_tokens": 0, "load_min_tokens": 1, "evict_ahead": 0}


def _check(name: str, value: Any) -> None:
    wanted = None
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            wanted = f"one of {', '.join(_CHOICES[name])}"
    elif name in _TEXTS:
        if not isinstance(value, str):
            wanted = "a text"
    elif name in _SWITCHES:
        if not isinstance(value, bool):
            wanted = "true or false"
    elif name in _LEAST:
        if not isinstance(value, int) or isinstance(value, bool) or value < _LEAST[name]:
            wanted = f"a whole number, at least {_LEAST[name]}"
    elif not isinstance(value, (int, float)) or isinstance(value, bool) or not 0.001 <= value <= 3600:
        wanted = "seconds, 0.001 to 3600"
    if wanted is not None:
        raise ValueError(f"kv_connector_extra_config.{name} is {value!r}; wanted is {wanted}")
