"""What kvist counts, on SGLang's own /metrics (--enable-metrics): sglang:kvist_away and sglang:kvist_*_total, of both ways.

SGLang's processes write their series into files of one folder, which the one that answers /metrics reads: made with
prometheus_client after SGLang has named that folder in the environment, series of ours are read as well.
"""

import functools
import time
from collections.abc import Mapping
from typing import Any

_LABELS = ("model_name", "tp_rank", "pp_rank", "dp_rank")
_TELL_EVERY_S = 0.2


class Metrics:
    """Series of one rank; all are there, at 0, from the start. Threads: one at a time.

    names: what each counter counts, by its name.
    """

    def __init__(self, names: Mapping[str, str], *, model: str, tp_rank: int, pp_rank: int, dp_rank: int) -> None:
        labels = dict(zip(_LABELS, (model, tp_rank, pp_rank, dp_rank)))
        self._counters = {name: _counter(name, what).labels(**labels) for name, what in names.items()}
        self._away = _gauge("away", "1: no kvistd serves this rank now").labels(**labels)
        self._away.set(0)
        self._told: dict[str, int] = {}
        self._tell_again = 0.0

    def tell(self, totals: Mapping[str, int], away: bool) -> None:
        """totals: counts since the start, by name. Costs nothing when it was told a moment ago."""
        now = time.monotonic()
        if now < self._tell_again:
            return
        self._tell_again = now + _TELL_EVERY_S
        self._away.set(int(away))
        for name, counter in self._counters.items():
            more = totals.get(name, 0) - self._told.get(name, 0)
            if more:
                counter.inc(more)
                self._told[name] = totals[name]

    def close(self) -> None:
        """No rank is without kvistd that doesn't want one. Totals stay."""
        self._away.set(0)


# A process's registry takes each name once, and SGLang may attach a backend anew.
@functools.cache
def _counter(name: str, what: str) -> Any:
    from prometheus_client import Counter

    return Counter(f"sglang:kvist_{name}", what, _LABELS)


@functools.cache
def _gauge(name: str, what: str) -> Any:
    from prometheus_client import Gauge

    return Gauge(f"sglang:kvist_{name}", what, _LABELS, multiprocess_mode="max")
