"""The class that vLLM creates, once for the scheduler and once in each worker: says what each of vLLM's hooks means for which side."""

from collections.abc import Iterable
from typing import Any

import torch
import vllm
from vllm.config import VllmConfig
from vllm.distributed.kv_events import KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvist.proven import refuse_others
from kvist.vllm.groups import chunk_tokens, engine_groups
from kvist.vllm.plan import Handshake, Plan
from kvist.vllm.scheduler import SchedulerSide
from kvist.vllm.settings import Settings
from kvist.vllm.stats import KvistPromMetrics, KvistStats
from kvist.vllm.worker import WorkerSide

logger = init_logger(__name__)


class KvistConnector(KVConnectorBase_V1, SupportsHMA):
    """See `SchedulerSide` and `WorkerSide` for what happens."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._settings = Settings.of(transfer.kv_connector_extra_config)
        if not self._settings.other_versions:
            refuse_others("vLLM", vllm.__version__, ("0.32",), "kv_connector_extra_config.other_versions")
        parallel = vllm_config.parallel_config
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if getattr(parallel, name, 1) > 1:
                raise ValueError(
                    f"kvist doesn't serve context parallelism: {name} is {getattr(parallel, name)} (supported: 1)"
                )
        groups = engine_groups(kv_cache_config, parallel.tensor_parallel_size)
        recurrent = any(group.recurrent for group in groups)
        if self._settings.load == "layerwise" and (len(groups) > 1 or recurrent):
            kinds = "recurrent layers" if recurrent else f"{len(groups)} cache groups"
            raise ValueError(
                f"load is layerwise, and the model has {kinds}: vLLM knows no failed blocks of those; use async"
            )
        if recurrent and vllm_config.num_speculative_tokens:
            raise ValueError(
                "kvist doesn't keep recurrent layers' states beside speculative decoding, which puts them into their blocks after the "
                "step: use one of them"
            )
        # vLLM's second model runner zeroes and fills such models' new blocks before it lets a connector stop what reads them.
        hold = kv_cache_config.needs_kv_cache_zeroing and vllm_config.use_v2_model_runner
        if self._settings.store == "on_eviction" and (recurrent or hold):
            kinds = "recurrent layers, whose states are gone by then" if recurrent else "KV of several precisions"
            raise ValueError(f"store is on_eviction, and the model has {kinds}: use eager")
        if self._settings.load == "layerwise" and vllm_config.scheduler_config.async_scheduling:
            raise ValueError(
                "load is layerwise, and vLLM schedules a step before it knows how the last one went: use --no-async-scheduling"
            )
        tokens = chunk_tokens(groups, self._settings.chunk_tokens)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._told_away = False
        if role == KVConnectorRole.SCHEDULER:
            if transfer.kv_load_failure_policy != "recompute":
                logger.warning(
                    'kv_load_failure_policy is "%s": a request whose KV can\'t be loaded FAILS. Set it to "recompute" in '
                    "--kv-transfer-config: then it is computed, as without kvist.",
                    transfer.kv_load_failure_policy,
                )
            step_tokens = vllm_config.scheduler_config.max_num_batched_tokens
            decoded = 1 + vllm_config.num_speculative_tokens
            self._scheduler = SchedulerSide(
                self._settings, groups, tokens, parallel.world_size, step_tokens, decoded, stores_hold=hold
            )
        else:
            self._worker = WorkerSide(self._settings, vllm_config, kv_cache_config, groups, tokens)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a store that is dropped is a later miss

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return extra_config.get("load") == "layerwise"

    # ---- the scheduler's ----

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]) -> None:
        handshakes = [metadata[rank] for rank in sorted(metadata)]
        assert all(isinstance(handshake, Handshake) for handshake in handshakes)
        self._scheduler.connect(handshakes)

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        self.set_xfer_handshake_metadata_pp_aware({(0, rank): handshake for rank, handshake in metadata.items()})

    def bind_kv_cache_manager(self, kv_cache_manager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._scheduler.bind(kv_cache_manager)

    def on_new_request(self, request) -> None:
        self._scheduler.new_request(request)

    def get_num_new_matched_tokens(self, request, num_computed_tokens: int) -> tuple[int | None, bool]:
        tokens = self._scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens) and self._settings.load == "async"

    def update_state_after_alloc(self, request, blocks, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output) -> Plan:
        return self._scheduler.plan(scheduler_output)

    def update_connector_output(self, connector_output) -> None:
        self._scheduler.update(connector_output)

    def request_finished(self, request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(self, request, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request)
        return False, None

    def reset_cache(self) -> bool:
        self._scheduler.reset()
        return True

    def has_pending_push_work(self) -> bool:
        """Whether stores hold blocks: only a step hears that they have ended, and an engine that pauses can't forget its cache before."""
        return self._scheduler is not None and self._scheduler.stores_hold_blocks

    def take_events(self) -> Iterable[KVCacheEvent]:
        return self._scheduler.take_events()

    # ---- a worker's ----

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._worker.handshake()

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self._worker.stop_stores(kv_connector_metadata)

    def start_load_kv(self, forward_context, **kwargs: Any) -> None:
        self._worker.begin_loads(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        self._worker.report_prefill(self._get_connector_metadata())
        self._worker.wait_for_layers()
        self._worker.begin_stores(self._get_connector_metadata())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return self._worker.results()

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.failed_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self._worker.report()

    # ---- both ----

    def get_kv_connector_stats(self) -> KvistStats | None:
        side = self._scheduler or self._worker
        counts = side.counters.take()
        if self._worker is not None and self._worker.away() != self._told_away:
            self._told_away = not self._told_away
            counts["away"] = int(self._told_away)
        return KvistStats(counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvistStats:
        return KvistStats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> KvistPromMetrics:
        return KvistPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()
