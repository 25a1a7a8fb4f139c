"""A worker's side: describes its pages to kvistd, begins what the plan says, and tells what has ended.

Order in a step: `stop_stores`; the forward pass; loads and stores begin (before the pass those loads that it needs itself); `results`. A store
reads pages that its step has filled; a load's pages are nobody's until it is reported. Bytes are moved by kvistd: nothing here touches them.
On a GPU nothing here waits for it: copies wait for the current stream's work so far, and for loads inside the step the stream waits.
Threads: the model runner's.
"""

import dataclasses
import multiprocessing
import time

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig

import kvist
from kvist.tensors import EngineGroup, RankMemory, describe_rank
from kvist.vllm import identity
from kvist.vllm.plan import Handshake, Load, Plan, Report, Store
from kvist.vllm.settings import Settings
from kvist.vllm.stats import Counters
from kvist.watch import Watch

logger = init_logger(__name__)


@dataclasses.dataclass
class _Copy:
    """The operations of one job: of a store one, of a load one for each of kvist's groups."""

    job: int
    ops: list[int]
    request_id: str = ""
    failed: bool = False
    pages: list[int] = dataclasses.field(default_factory=list)  # of a load inside a step


class WorkerSide:
    def __init__(
        self,
        settings: Settings,
        config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        groups: list[EngineGroup],
        chunk_tokens: int,
    ) -> None:
        self._settings = settings
        self._config = config
        self._kv_cache_config = kv_cache_config
        self._groups = groups
        self._chunk_tokens = chunk_tokens
        self._client: kvist.Client | None = None
        self._handshake: Handshake | None = None
        self._loads: list[_Copy] = []
        self._stores: list[_Copy] = []
        self._late: list[_Copy] = []  # given up, but kvistd may still write
        self._inside: list[_Copy] = []  # loads that this step itself needs
        self._layers: dict[str, tuple[int, int]] = {}  # kvist's group and how many of its layers a layer needs
        self._failed_blocks: set[int] = set()
        self._misled: set[str] = set()  # requests whose load inside this step failed
        self._report = Report()
        self._watch: Watch | None = None
        self._began = 0.0  # the forward pass
        self._on_gpu = False
        self._rank: RankMemory | None = None  # keeps the tensors mapped
        self.counters = Counters()

    def register(self, tensors: dict[str, torch.Tensor]) -> None:
        """Raises ValueError for what can't be described, KvistError for a description that proves wrong."""
        parallel = self._config.parallel_config
        devices = {tensor.device for tensor in tensors.values()}
        if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
            raise ValueError(
                f"kvist keeps KV that is on one CPU or CUDA device; this is on {', '.join(sorted(map(str, devices)))}"
            )
        device = devices.pop()
        self._on_gpu = device.type == "cuda"
        rank = self._rank = describe_rank(self._groups, tensors, self._kv_cache_config.num_blocks)
        model, revision = identity.weights(self._config, self._settings.weights)
        space = kvist.Space(
            model=model,
            revision=revision,
            kv_dtype=str(self._config.cache_config.cache_dtype),
            layout=identity.layout(self._config, self._kv_cache_config, device),
            page_tokens=self._groups[0].block_tokens,
            chunk_tokens=self._chunk_tokens,
            groups=rank.groups,
            tensor_parallel=parallel.tensor_parallel_size,
            pipeline_parallel=parallel.pipeline_parallel_size,
        )
        instance = self._config.kv_transfer_config.engine_id
        self._client = kvist.Client(
            role=kvist.Role.WORKER,
            instance=instance,
            space=space,
            rank=parallel.rank % parallel.world_size,
            memory=rank.memory,
            socket=self._settings.socket,
            ask_again=True,
        )
        self._handshake = Handshake(instance, space, rank.tables)
        self._layers = rank.layers
        self._watch = Watch(self._client, logger)
        self._watch.look()

    def handshake(self) -> Handshake | None:
        return self._handshake

    # ---- a step ----

    def stop_stores(self, plan: Plan) -> None:
        """Comes before anything of the step writes. When it returns nothing reads those blocks, or what was read won't be seen."""
        self._began = time.perf_counter()
        for store in self._stores:
            if store.job in plan.stop:
                for op in store.ops:
                    self._client.cancel(op)

    def begin_loads(self, plan: Plan) -> None:
        for load in plan.loads:
            copy = self._load(load)
            if load.inside:
                copy.pages = [page for part in load.parts for page in part.pages if page != kvist.NO_PAGE]
                self._inside.append(copy)
            else:
                self._loads.append(copy)
        for job in plan.give_up:
            for copy in self._loads:
                if copy.job == job:
                    copy.failed = True
                    for op in copy.ops:
                        self._client.cancel(op)

    def _after(self) -> kvist.After:
        """What a copy waits for: kernels that have been launched may still write or read its pages."""
        return kvist.After.on(torch.cuda.current_stream().cuda_stream) if self._on_gpu else kvist.After()

    def _load(self, load: Load) -> _Copy:
        copy = _Copy(load.job, [], load.request_id, failed=not load.parts)
        for part in load.parts:
            try:
                copy.ops.append(
                    self._client.load(
                        load.lease,
                        part.pages,
                        first_chunk=part.first_chunk,
                        chunk_count=part.chunk_count,
                        group=part.group,
                        deadline_s=self._settings.load_timeout_s,
                        after=self._after(),
                    )
                )
            except kvist.KvistError:
                copy.failed = True
                for op in copy.ops:
                    self._client.cancel(op)
                break
        return copy

    def wait_for_layer(self, name: str) -> None:
        """Waits until the layer's pages are there in all loads inside this step; those that fail are told at the step's end."""
        if not self._inside:
            return
        if name not in self._layers:
            # One that has no KV of its own and reads another one's: which, only vLLM's runner knows.
            for all_of in set(self._layers):
                self.wait_for_layer(all_of)
            return
        group, layers = self._layers[name]
        for load in self._inside:
            if load.failed or not load.ops[group]:
                continue
            if self._on_gpu:
                self._wait_on_stream(load, group, layers)
            else:
                result = self._wait_inside(load, group, layers)
                load.failed |= result.status == kvist.Status.PENDING and result.layers < layers

    def _wait_on_stream(self, load: _Copy, group: int, layers: int) -> None:
        """The stream goes on when the load fails, too; `wait_for_layers` hears of it before anything of this step is kept."""
        try:
            self._client.wait_on_stream(load.ops[group], torch.cuda.current_stream().cuda_stream, layers=layers)
        except kvist.KvistError:
            load.failed = True

    def _wait_inside(self, load: _Copy, group: int, layers: int) -> kvist.Result:
        """Of one operation; when it has ended, its place in `ops` becomes 0."""
        result = self._client.wait(load.ops[group], 0.0 if load.failed else self._settings.load_timeout_s, layers=layers)
        if result.status != kvist.Status.PENDING:
            load.failed |= result.status != kvist.Status.OK
            if result.pages_released:
                load.ops[group] = 0
        return result

    def wait_for_layers(self) -> None:
        """Ends this step's own loads, as its forward pass has ended."""
        for load in self._inside:
            for group, op in enumerate(load.ops):
                if op and not load.failed:
                    load.failed |= self._wait_inside(load, group, kvist.ALL_LAYERS).status == kvist.Status.PENDING
            if load.failed:
                for group, op in enumerate(load.ops):
                    if op:
                        self._client.cancel(op)
                        self._wait_inside(load, group, kvist.ALL_LAYERS)
            load.ops = [op for op in load.ops if op]
            self._report.inside[load.job] = 1
            if load.failed:
                self._report.inside_failed[load.job] = 1
                self._failed_blocks.update(load.pages)
                self._misled.add(load.request_id)
            self._ended(load)
        self._inside = []

    def _ended(self, load: _Copy) -> None:
        """Counts a load that is over for its request; its `ops` are those with which kvistd may still write."""
        self.counters["loads_failed" if load.failed else "loads"] += 1
        if load.ops:
            self.counters["loads_late"] += 1
            self._report.late[load.job] = 1
            self._late.append(load)

    def failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def report_prefill(self, plan: Plan) -> None:
        """The forward pass has ended, which took as long on all ranks of the one stage; a load inside it would have been part of that."""
        parallel = self._config.parallel_config
        # On a GPU the pass has only been launched: what it takes is not known here.
        alone = parallel.rank == 0 and parallel.pipeline_parallel_size == 1 and not self._on_gpu
        if plan.prefill is not None and alone and not any(load.inside for load in plan.loads):
            first, tokens = plan.prefill
            took_s = min(max(time.perf_counter() - self._began, 1e-6), 3600.0)  # as it may
            self._client.report_prefill(first, tokens, took_s=took_s)

    def begin_stores(self, plan: Plan) -> None:
        for store in plan.stores:
            # What was computed on KV that didn't come must not be kept.
            self._stores.append(
                _Copy(store.job, [], failed=True) if store.request_id in self._misled else self._store(store)
            )
        self._misled.clear()

    def _store(self, store: Store) -> _Copy:
        copy = _Copy(store.job, [])
        try:
            op = self._client.store(
                store.keys,
                store.pages,
                first_chunk=store.parents,
                group=store.group,
                deadline_s=self._settings.store_timeout_s,
                after=self._after(),
            )
            copy.ops.append(op)
        except kvist.KvistError:
            copy.failed = True
        return copy

    def results(self) -> KVConnectorTransferResults:
        """What has ended since the last step."""
        results = KVConnectorTransferResults()
        if self._stores:
            self._stores = [store for store in self._stores if not self._stored(store)]
        if self._loads:
            self._loads = [load for load in self._loads if not self._loaded(load, results)]
        if self._late:
            self._late = [load for load in self._late if not self._quiet(load)]
        self._watch.look()
        return results

    def _stored(self, store: _Copy) -> bool:
        stopped = False
        for op in store.ops:
            result = self._client.poll(op)
            if result.status == kvist.Status.PENDING:
                return False
            self.counters["chunks_stored"] += result.chunks_copied
            self.counters["chunks_known"] += result.chunks_skipped
            if result.chunks_refused:
                self._report.refused[store.job] = 1
            if result.status != kvist.Status.OK:
                store.failed = True
                stopped = result.status == kvist.Status.CANCELLED
        self._report.stored[store.job] = 1
        if store.failed:
            self.counters["stores_stopped" if stopped else "stores_failed"] += 1
            self._report.unstored[store.job] = 1
        else:
            self.counters["stores"] += 1
        return True

    def _loaded(self, load: _Copy, results: KVConnectorTransferResults) -> bool:
        """Also when some of it is late: then its pages are the scheduler's business until they are quiet."""
        writing, pending = [], False
        for op in load.ops:
            result = self._client.poll(op)
            if result.status == kvist.Status.PENDING:
                pending = True
                writing.append(op)
                continue
            if result.status != kvist.Status.OK:
                load.failed = True
            if not result.pages_released:
                writing.append(op)
        load.ops = writing
        if pending and not load.failed:
            return False
        if pending:
            for op in writing:
                self._client.cancel(op)
            return False
        results.finished_recving.add(load.request_id)
        if load.failed:
            results.failed_recving.add(load.request_id)
        self._ended(load)
        return True

    def _quiet(self, load: _Copy) -> bool:
        load.ops = [op for op in load.ops if not self._client.poll(op).pages_released]
        if load.ops:
            return False
        self._report.quiet[load.job] = self._report.quiet.get(load.job, 0) + 1
        return True

    def report(self) -> Report | None:
        if not self._report:
            return None
        report, self._report = self._report, Report()
        return report

    def away(self) -> bool:
        return self._watch is not None and not self._watch.connected

    def close(self) -> None:
        """Ends the session; nothing touches the pages afterwards, or the daemon hangs and was given its time."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        rank, self._rank = self._rank, None
        # A process that was made for the engine ends with it.
        if rank is not None and rank.shared is not None and multiprocessing.parent_process() is None:
            try:
                rank.shared.undo()
            except OSError as error:
                logger.warning("the pages that kvist has shared stay shared: %s", error)
