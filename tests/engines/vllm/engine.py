"""An engine without a model: vLLM's own Scheduler, block pool and connector hooks; "computing" writes and checks bytes (contents.py).

    add, abort, reset        what clients do
    step                     schedule -> each worker's step through vLLM's KVConnectorModelRunnerMixin -> update_from_output
    run                      steps until all requests are finished
    settle                   steps until the connector owes nothing, then checks that every block is free

What it finds, at once: a wrong byte that attention would read; a write into a block that nobody has; a leaked or doubly freed block.
"""

import collections
import copy
import dataclasses
import pickle
import time
import types
import zlib

import numpy as np
import settings
import torch
import vllm.distributed.kv_transfer.kv_transfer_state as kv_transfer_state
import vllm.distributed.parallel_state as parallel_state
from contents import Identity, Names, next_token, page_bytes
from settings import STATES
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.forward_context import set_forward_context
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
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

JUNK = 0x0BADF00D


class WrongBytes(AssertionError):
    """Attention would have read bytes that are not this prefix's; `blocks` hold them."""

    blocks: set[int] = set()


class StrayWrite(AssertionError):
    """A block that belongs to nobody has changed."""


@dataclasses.dataclass
class Table:
    """A request as a worker knows it: its blocks, one list a group."""

    blocks: list[list[int]]


class Worker:
    """One rank: its connector, its pages, its block tables. Driven by Engine.step only."""

    def __init__(self, engine: "Engine", rank: int) -> None:
        self.engine = engine
        self.rank = rank
        self.stage, self.tp_rank = divmod(rank, engine.shape.tp)
        shape = engine.shape
        self.config = copy.deepcopy(engine.config)
        self.config.parallel_config.rank = rank
        self.tables: dict[str, Table] = {}
        layout = shape.layout
        # Layer i of every group is the same tensor.
        tensors = layout.allocate(shape.blocks, shape.block, shape.layers)
        self.tensors = tensors
        self.views = [layout.tokens(t, shape.blocks) for t in tensors]
        for view in self.views:
            view.fill_(JUNK)
        self.caches = {
            settings.layer_name(g, i, self.stage): tensors[i] if window != STATES else layout.states(tensors[i], shape.blocks)
            for g, window in enumerate(shape.windows)
            for i in range(shape.layers)
        }
        self.states = [t.view(torch.int32).view(shape.blocks, -1) for t in tensors] if STATES in shape.windows else []
        self.running: dict[str, int] = {}  # [request] which of its blocks has its states
        with self.as_rank():
            self.connector = KVConnectorFactory.create_connector(
                self.config, KVConnectorRole.WORKER, settings.kv_cache_config(shape, self.stage)
            )
            self.connector.register_kv_caches(self.caches)
        self._wrong: list[tuple[str, int, int, WrongBytes]] = []
        self._free_before: tuple[list[int], list[torch.Tensor]] | None = None

    def as_rank(self):
        return _AsRank(self)

    # ---- pages ----

    def _index(self, blocks: list[int], positions: np.ndarray):
        n = self.engine.shape.block
        block = torch.tensor(blocks)[positions // n]
        part = self.views[0].shape[2]
        within = torch.from_numpy(positions % n)
        return block, within // part, within % part

    def _expected(self, group: int, layer: int, names: np.ndarray, words: int | None = None) -> np.ndarray:
        place = group * 50 + layer + 1000 * self.stage + (0 if self.engine.shape.replicated else 200 * self.tp_rank)
        return page_bytes(names, place, words or self.engine.shape.layout.words)

    def check(self, request_id: str, group: int, layer: int, names: np.ndarray, first: int) -> None:
        """That tokens [first, len(names)) are in their pages."""
        positions = np.arange(first, len(names))
        if not len(positions):
            return
        blocks = self.tables[request_id].blocks[group]
        got = self.views[layer][self._index(blocks, positions)].reshape(len(positions), -1).numpy()
        wanted = self._expected(group, layer, names[first:])
        if not np.array_equal(got, wanted):
            wrong = [int(p) for p in positions[(got != wanted).any(axis=1)]]
            block = blocks[wrong[0] // self.engine.shape.block]
            error = WrongBytes(
                f"rank {self.rank} {request_id}: group {group} layer {layer} tokens {wrong[0]}..{wrong[-1]} ({len(wrong)} of "
                f"{len(positions)}), the first in block {block}, hold {self._whose(got[wrong[0] - first])}"
            )
            error.blocks = {blocks[p // self.engine.shape.block] for p in wrong}
            raise error

    def _whose(self, row: np.ndarray) -> str:
        """Of which computation these bytes are, for the message."""
        if (row == JUNK).all():
            return "nothing written since the block was given out"
        for request_id, names in self.engine.names.items():
            known = np.array(names.known, dtype=np.uint64)
            for g in range(len(self.engine.shape.windows)):
                for i in range(self.engine.shape.layers):
                    if len(known) and (same := (self._expected(g, i, known)[:, 0] == row[0]).nonzero()[0]).size:
                        return f"token {int(same[0])} of {request_id} in group {g} layer {i}"
        return f"what nobody computed: {row[:4]}"

    def write(self, request_id: str, group: int, layer: int, names: np.ndarray, first: int) -> None:
        positions = np.arange(first, len(names))
        blocks = self.tables[request_id].blocks[group]
        shape = self.views[layer].shape
        data = torch.from_numpy(self._expected(group, layer, names[first:])).reshape(len(positions), *shape[3:])
        self.views[layer][self._index(blocks, positions)] = data

    # ---- states ----

    def _column(self, tokens: int) -> int:
        """The block in which vLLM has the state after so many tokens of a request, as a place in its table."""
        return -(-tokens // self.engine.shape.block) - 1

    def _carry(self, request_id: str, group: int, layer: int, first: int, names: np.ndarray) -> None:
        """Before a step that computes names[first:]: the state so far goes into the block that the step's end will be in."""
        if first == 0:
            return
        blocks, states = self.tables[request_id].blocks[group], self.states[layer]
        block = blocks[self.running.get(request_id, self._column(first))]
        got = states[block].numpy()
        if not np.array_equal(got, self._expected(group, layer, names[first - 1 : first], len(got))[0]):
            raise WrongBytes(
                f"rank {self.rank} {request_id}: group {group} layer {layer}, the state after {first} tokens in block {block} of "
                f"{blocks}, is {self._whose(got)}"
            )
        states[blocks[self._column(len(names))]] = states[block]

    def _advance(self, request_id: str, group: int, layer: int, names: np.ndarray) -> None:
        state = self.states[layer][self.tables[request_id].blocks[group][self._column(len(names))]]
        state[:] = torch.from_numpy(self._expected(group, layer, names[-1:], len(state))[0])

    def check_free_blocks(self) -> None:
        """Blocks that were free after the last step are as they were then."""
        if self._free_before is None:
            return
        ids, before = self._free_before
        for layer, (view, was) in enumerate(zip(self.views, before)):
            now = view[ids]
            if not torch.equal(now, was):
                changed = [ids[i] for i in range(len(ids)) if not torch.equal(now[i], was[i])]
                raise StrayWrite(f"rank {self.rank}: free blocks {changed} changed in layer {layer}")

    def note_free_blocks(self) -> None:
        ids = [b.block_id for b in self.engine.pool.blocks if b.ref_cnt == 0 and not b.is_null]
        self._free_before = (ids, [view[ids].clone() for view in self.views]) if ids else None

    # ---- one step ----

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """As GPUModelRunner.execute_model with this connector."""
        output = dataclasses.replace(output, kv_connector_metadata=pickle.loads(pickle.dumps(output.kv_connector_metadata)))
        with self.as_rank():
            if self.engine.shape.second_runner:
                fresh = self._prepare(output)
                self.connector.handle_preemptions(output.kv_connector_metadata)
            else:
                self.connector.handle_preemptions(output.kv_connector_metadata)
                fresh = self._prepare(output)
            if not output.total_num_scheduled_tokens:
                result = KVConnectorModelRunnerMixin.kv_connector_no_forward(output, self.config)
                connector_output = result.kv_connector_output
            else:
                with (
                    set_forward_context({"attention": True}, self.config),
                    KVConnectorModelRunnerMixin._get_kv_connector_output(output) as connector_output,
                ):
                    self._forward(output, fresh)
        # A load inside the step may fail, if it says so in this very step: then vLLM drops what the step computed.
        for _, _, _, error in self._wrong:
            if connector_output is None or not error.blocks <= connector_output.invalid_block_ids:
                raise error
        self._wrong.clear()
        if connector_output is not None:
            connector_output.kv_connector_worker_meta = pickle.loads(pickle.dumps(connector_output.kv_connector_worker_meta))
        result = self.engine.sample(output)
        result.kv_connector_output = connector_output
        return result

    def _prepare(self, output: SchedulerOutput) -> dict[str, list[set[int]]]:
        """What a runner does to new blocks before the forward pass; answers which each request got."""
        fresh = self._update_tables(output)
        for block in output.new_block_ids_to_zero or ():
            for view in self.views:
                view[block] = JUNK
        recurrent = [group for group, window in enumerate(self.engine.shape.windows) if window == STATES]
        for request_id, count in output.num_scheduled_tokens.items() if recurrent else ():
            first = self.engine.computed_before(output, request_id)
            names = np.array(self.engine.names_for(output, request_id, first + count), dtype=np.uint64)
            for group in recurrent:
                for layer in range(self.engine.shape.layers):
                    self._carry(request_id, group, layer, first, names)
        return fresh

    def _update_tables(self, output: SchedulerOutput) -> dict[str, list[set[int]]]:
        """Follows the scheduler's block tables; answers which blocks each request got new."""
        for gone in output.finished_req_ids:
            self.tables.pop(gone, None)
            self.running.pop(gone, None)
        fresh: dict[str, list[set[int]]] = {}
        for new in output.scheduled_new_reqs:
            self.running.pop(new.req_id, None)
            self.tables[new.req_id] = Table([list(ids) for ids in new.block_ids])
            fresh[new.req_id] = [set(ids) for ids in new.block_ids]
        cached = output.scheduled_cached_reqs
        for request_id, ids in zip(cached.req_ids, cached.new_block_ids):
            if request_id in cached.resumed_req_ids:
                self.running.pop(request_id, None)
                self.tables[request_id] = Table([list(group) for group in ids])
                fresh[request_id] = [set(group) for group in ids]
            elif ids is not None:
                for table, more in zip(self.tables[request_id].blocks, ids):
                    table.extend(more)
                fresh[request_id] = [set(group) for group in ids]
        assert not output.kv_cache_block_copies
        return fresh

    def _forward(self, output: SchedulerOutput, fresh: dict[str, list[set[int]]]) -> None:
        engine = self.engine
        work = []
        for request_id, count in output.num_scheduled_tokens.items():
            first = engine.computed_before(output, request_id)
            names = engine.names_for(output, request_id, first + count)
            work.append((request_id, first, np.array(names[: first + count], dtype=np.uint64)))
        for g, window in enumerate(engine.shape.windows):
            for i in range(engine.shape.layers):
                name = settings.layer_name(g, i, self.stage)
                self.connector.wait_for_layer_load(name)
                if window == STATES:
                    for request_id, _, names in work:
                        self._advance(request_id, g, i, names)
                    continue
                # As attention does: first all new KV is written (a request may hit blocks that another one fills in this very step).
                for request_id, first, names in work:
                    self._junk(request_id, g, i, first, len(names), fresh.get(request_id))
                    self.write(request_id, g, i, names, first)
                for request_id, first, names in work:
                    try:
                        self.check(request_id, g, i, names[:first], max(0, first - window + 1) if window else 0)
                    except WrongBytes as error:
                        if not output.has_sync_kv_loads:
                            raise
                        self._wrong.append((request_id, first, len(names), error))
                self.connector.save_kv_layer(name, self.caches[name], None)
        self.running |= {request_id: self._column(len(names)) for request_id, _, names in work}
        for request_id, first, last, _ in self._wrong:  # so are all keys and values computed from it
            for g in range(len(engine.shape.windows)):
                for view in self.views:
                    positions = np.arange(first, last)
                    view[self._index(self.tables[request_id].blocks[g], positions)] = JUNK

    def _junk(self, request_id: str, group: int, layer: int, first: int, last: int, fresh) -> None:
        """What a new block held is gone when its first token is written."""
        n = self.engine.shape.block
        for index in range(-(-first // n), -(-last // n)):
            block = self.tables[request_id].blocks[group][index]
            if fresh is not None and block in fresh[group]:
                self.views[layer][block] = JUNK

    def close(self) -> None:
        with self.as_rank():
            self.connector.shutdown()


class _AsRank:
    """vLLM's process-wide state while a worker of ours runs."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def __enter__(self):
        self.before = (kv_transfer_state._KV_CONNECTOR_AGENT, parallel_state._TP, parallel_state._PP)
        kv_transfer_state._KV_CONNECTOR_AGENT = getattr(self.worker, "connector", None)
        parallel_state._TP = types.SimpleNamespace(
            rank_in_group=self.worker.tp_rank, world_size=self.worker.engine.shape.tp, rank=self.worker.rank
        )
        stages, stage = self.worker.engine.shape.pp, self.worker.stage
        parallel_state._PP = types.SimpleNamespace(
            rank_in_group=stage,
            world_size=stages,
            rank=self.worker.rank,
            is_first_rank=stage == 0,
            is_last_rank=stage == stages - 1,
        )

    def __exit__(self, *_):
        kv_transfer_state._KV_CONNECTOR_AGENT, parallel_state._TP, parallel_state._PP = self.before


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
