"""An engine without a model: vLLM's own Scheduler, block pool and connector hooks, and workers (worker.py).

    add, abort, reset        what clients do
    step                     schedule -> each worker's step through vLLM's KVConnectorModelRunnerMixin -> update_from_output
    run                      steps until all requests are finished
    settle                   steps until the connector owes nothing, then checks that every block is free

What it finds, at once: a wrong byte that attention would read; a write into a block that nobody has; a leaked or doubly freed block.
"""

import collections
import pickle
import time
import zlib

import settings
from contents import Identity, Names, next_token
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from worker import Worker


class Engine:
    """One vLLM engine with its connector. A context manager."""

    def __init__(self, model: str, shape: settings.Shape, transfer: dict, engine_id: str) -> None:
        self.shape = shape
        self.config = settings.vllm_config(model, shape, transfer, engine_id)
        self.cache_config = settings.kv_cache_config(shape)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(shape.block, sha256)
        self.workers = [Worker(self, rank) for rank in range(shape.tp * shape.pp)]  # before the scheduler's, as in vLLM
        self.scheduler = (AsyncScheduler if shape.ahead else Scheduler)(
            self.config,
            self.cache_config,
            StructuredOutputManager(self.config),
            block_size=shape.block,
            hash_block_size=shape.block,
            log_stats=True,
        )
        self.scheduler.max_num_encoder_input_tokens = 1 << 20
        self.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=1 << 20)
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.connector = self.scheduler.connector
        handshakes = {(worker.stage, worker.tp_rank): worker.connector.get_handshake_metadata() for worker in self.workers}
        if all(handshake is not None for handshake in handshakes.values()):
            self.connector.set_xfer_handshake_metadata_pp_aware(pickle.loads(pickle.dumps(handshakes)))
        self.aggregator = KVOutputAggregator.from_connector(self.connector, len(self.workers))
        self.requests: dict[str, Request] = {}
        self.names: dict[str, Names] = {}
        self.drafted: dict[str, list[int]] = {}
        self.make_draft = None  # (request, right tokens) -> drafts
        self.outputs: dict[str, list[int]] = {}
        self._loaded = 0
        self._in_flight: collections.deque[SchedulerOutput] = collections.deque()
        self.last_connector_output = KVConnectorOutput()
        self.read_by: dict[int, list[int]] = {}  # [job] blocks
        self.steps = 0
        self.story: collections.deque[str] = collections.deque(maxlen=4000)
        self._numbers = 0

    # ---- what clients do ----

    def add(
        self,
        tokens: list[int],
        *,
        max_tokens: int = 4,
        identity: Identity = Identity(),
        skip_reading: bool | None = None,
        request_id: str | None = None,
        priority: int = 0,
        lora: LoRARequest | None = None,
        kv_transfer_params: object = None,
    ) -> str:
        self._numbers += 1
        request_id = request_id or f"r{self._numbers}"
        if identity.lora:
            lora = LoRARequest(identity.lora, zlib.crc32(identity.lora.encode()) + 1, "/nowhere")
        features = [
            MultiModalFeatureSpec(
                data=None, modality="image", identifier=i, mm_position=PlaceholderRange(offset=first, length=count)
            )
            for i, first, count in identity.images
        ]
        request = Request(
            request_id,
            list(tokens),
            SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0, skip_reading_prefix_cache=skip_reading),
            None,
            mm_features=features,
            lora_request=lora,
            cache_salt=identity.salt or None,
            block_hasher=self.hasher,
            priority=priority,
        )
        request.kv_transfer_params = kv_transfer_params
        self.requests[request_id] = request
        self.names[request_id] = Names(identity)
        self.scheduler.add_request(request)
        return request_id

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def status(self, request_id: str) -> RequestStatus:
        return self.requests[request_id].status

    # ---- what the model runner knows ----

    def computed_before(self, output: SchedulerOutput, request_id: str) -> int:
        for new in output.scheduled_new_reqs:
            if new.req_id == request_id:
                return new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        return cached.num_computed_tokens[cached.req_ids.index(request_id)]

    def names_for(self, output: SchedulerOutput, request_id: str, count: int) -> list[int]:
        tokens = list(self.requests[request_id].all_token_ids)
        tokens += [t for t in output.scheduled_spec_decode_tokens.get(request_id, []) if t >= 0]
        tokens += [0] * (count - len(tokens))  # padded drafts
        return self.names[request_id].of(tokens[:count])

    def sample(self, output: SchedulerOutput) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for request_id, count in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            last = self.computed_before(output, request_id) + count
            drafts = output.scheduled_spec_decode_tokens.get(request_id, [])
            known = request.num_tokens
            if last < known + len(drafts):
                sampled.append([])
                continue
            tokens = list(request.all_token_ids)
            said = []
            for draft in [*drafts, None]:
                token = next_token(self.names[request_id].of(tokens)[-1], settings.VOCABULARY)
                said.append(token)
                tokens.append(token)
                if draft != token:
                    break
            sampled.append(said)
        return ModelRunnerOutput(ids, {r: i for i, r in enumerate(ids)}, sampled)

    # ---- steps ----

    def step(self) -> SchedulerOutput:
        """Schedules a step; computes it, or when it schedules ahead the one before it, as vLLM's batch queue of two does."""
        self.steps += 1
        for worker in self.workers:
            worker.check_free_blocks()
        output = self.scheduler.schedule()
        if self.shape.second_runner:
            self._check_held(output)
        self._note(output)
        self._in_flight.append(output)
        if len(self._in_flight) > self.shape.ahead:
            self._compute(self._in_flight.popleft())
        return output

    def _check_held(self, output: SchedulerOutput) -> None:
        """What it writes into before a connector can stop what reads it is read by no store that has begun before."""
        under_way = self.connector._scheduler._stores._storing
        plan = output.kv_connector_metadata
        self.read_by = {job: pages for job, pages in self.read_by.items() if job in under_way}
        for job, pages in self.read_by.items():
            taken = set(output.new_block_ids_to_zero or ()) & set(pages)
            assert not taken, f"blocks {taken} are written, and store {job} reads them"
        self.read_by |= {store.job: list(store.pages) for store in plan.stores}

    def _compute(self, output: SchedulerOutput) -> None:
        results = [worker.execute(output) for worker in self.workers]
        result = self.aggregator.aggregate(results)
        for outputs in self.scheduler.update_from_output(output, result).values():
            stats = outputs.scheduler_stats.connector_prefix_cache_stats if outputs.scheduler_stats is not None else None
            if stats is not None:
                self._loaded += stats.hits + stats.preempted_hits
            for one in outputs.outputs:
                self.outputs.setdefault(one.request_id, []).extend(one.new_token_ids)
        if self.make_draft is not None:
            self._draft(output)
        for worker in self.workers:
            worker.note_free_blocks()
        self.last_connector_output = result.kv_connector_output
        if not self.last_connector_output.is_empty():
            self.story.append(f"{self.steps}: {self.last_connector_output}")

    def _note(self, output: SchedulerOutput) -> None:
        """For the story of a block, told when something is wrong."""
        for request_id, count in output.num_scheduled_tokens.items():
            table = self.scheduler.kv_cache_manager.get_block_ids(request_id)
            self.story.append(
                f"{self.steps}: {request_id} computes {self.computed_before(output, request_id)}+{count} in {table}"
            )
        for request_id in output.preempted_req_ids or ():
            self.story.append(f"{self.steps}: {request_id} is preempted")
        for request_id in output.finished_req_ids:
            self.story.append(f"{self.steps}: {request_id} is finished, {self.status(request_id).name}")
        if output.kv_connector_metadata is not None:
            self.story.append(f"{self.steps}: {output.kv_connector_metadata}")

    def _draft(self, output: SchedulerOutput) -> None:
        ids, drafts = [], []
        for request_id in output.num_scheduled_tokens:
            request = self.requests[request_id]
            if request.is_finished() or request.is_prefill_chunk:
                continue
            tokens, right = list(request.all_token_ids), []
            for _ in range(self.shape.drafts):
                right.append(next_token(self.names[request_id].of(tokens)[-1], settings.VOCABULARY))
                tokens.append(right[-1])
            ids.append(request_id)
            drafts.append(self.make_draft(request, right))
        self.scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))

    def run(self, limit_s: float = 60.0) -> None:
        """Until every request is finished."""
        self.until(lambda: not self.scheduler.has_unfinished_requests(), limit_s)

    def until(self, wanted, limit_s: float = 60.0) -> None:
        end = time.monotonic() + limit_s
        while not wanted():
            if time.monotonic() > end:
                raise AssertionError(f"no end: {[(r.request_id, r.status.name) for r in self.scheduler.requests.values()]}")
            if not self.step().total_num_scheduled_tokens:
                time.sleep(0.001)  # for kvistd: this engine has nothing to compute

    def prefill(self, tokens: list[int], **how) -> str:
        """One request from its beginning to its end."""
        request_id = self.add(tokens, **how)
        self.run()
        return request_id

    def loaded_tokens(self) -> int:
        """Tokens that the connector promised since the last call, as vLLM counts them when a request is admitted."""
        loaded, self._loaded = self._loaded, 0
        return loaded

    # ---- the end ----

    def settle(self, ledger=None, limit_s: float = 20.0) -> None:
        """Steps until nothing is under way, then: every block free, no request left."""
        self.until(lambda: not self.scheduler.requests, limit_s)
        if ledger is not None:
            ledger.settle(self.step, limit_s)
        self.until(lambda: not self.scheduler.has_requests(), limit_s)
        while self._in_flight:
            self._compute(self._in_flight.popleft())
        self.check_clean()

    def check_clean(self) -> None:
        scheduler = self.scheduler
        assert (
            not scheduler.requests and not scheduler.running and not scheduler.waiting and not scheduler.kv_holding_waiting
        )
        assert not scheduler.finished_recving_kv_req_ids and not scheduler.failed_recving_kv_req_ids
        assert not scheduler._inflight_prefills and not scheduler.deferred_waiting
        for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
            assert not manager.req_to_blocks, dict(manager.req_to_blocks)
            assert not manager.num_cached_block, manager.num_cached_block
        assert self.pool.free_block_queue.num_free_blocks == self.shape.blocks - 1
        held = [(b.block_id, b.ref_cnt) for b in self.pool.blocks if b.ref_cnt and not b.is_null]
        assert not held, f"blocks with references: {held}"

    def reset(self) -> None:
        """Forgets vLLM's own prefix cache; nothing may be running."""
        assert self.scheduler.reset_prefix_cache()

    def close(self) -> None:
        self.scheduler.shutdown()
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_) -> None:
        self.close()
