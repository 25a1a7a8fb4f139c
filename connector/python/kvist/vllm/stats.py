"""What the connector counts: for vLLM's log line and its Prometheus endpoint."""

import dataclasses
from typing import Any

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

import kvist

# name -> what it counts, since the last report; all are sums, over ranks too.
COUNTERS = {
    "lookups": "lookups that were answered",
    "lookups_missed": "lookups that kvistd didn't answer: away, hung, or full",
    "asked_tokens": "tokens whose load was begun",
    "loads": "loads that ended well, of one rank",
    "loads_failed": "loads that failed, of one rank: computed instead",
    "loads_late": "loads that were given up while kvistd could still write, of one rank",
    "stores": "stores that ended well, of one rank and group",
    "stores_stopped": "stores that were stopped, of one rank and group: vLLM has given their blocks to somebody else",
    "stores_failed": "stores that failed, of one rank and group",
    "refused_stores": "stores some of whose chunks had no room or no parent any more",
    "chunks_stored": "chunks copied to kvistd, of one rank and group",
    "chunks_known": "chunks that kvistd had already, of one rank and group",
}


class Counters(dict):
    """[name of COUNTERS] how much was added since `take`."""

    def __missing__(self, name: str) -> int:
        return 0

    def lookup(self, status: kvist.Status) -> None:
        self["lookups" if status == kvist.Status.OK else "lookups_missed"] += 1

    def take(self) -> dict[str, int]:
        if not self:
            return {}
        counts = dict(self)
        self.clear()
        return counts


@dataclasses.dataclass
class KvistStats(KVConnectorStats):
    """data: counts by name, and whether a worker or the scheduler is without a daemon (`away`)."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> "KvistStats":
        merged = dict(self.data)
        for name, count in other.data.items():
            merged[name] = max(merged.get(name, 0), count) if name == "away" else merged.get(name, 0) + count
        return KvistStats(merged)

    def reduce(self) -> dict[str, int | float]:
        return {f"kvist {name}": count for name, count in self.data.items()}

    def is_empty(self) -> bool:
        return not self.data


class KvistPromMetrics(KVConnectorPromMetrics):
    """vllm:kvist_*; all series are there from the start."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._per_engine(
                metric_types[Counter](name=f"vllm:kvist_{name}", documentation=what, labelnames=labelnames)
            )
            for name, what in COUNTERS.items()
        }
        self._away = self._per_engine(
            metric_types[Gauge](
                name="vllm:kvist_away", documentation="1: no kvistd serves this engine now", labelnames=labelnames
            )
        )

    def _per_engine(self, metric) -> dict[int, Any]:
        return {engine: metric.labels(*values) for engine, values in self.per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, count in transfer_stats_data.items():
            if name == "away":
                self._away[engine_idx].set(count)
            elif name in self._counters and count:
                self._counters[name][engine_idx].inc(count)
