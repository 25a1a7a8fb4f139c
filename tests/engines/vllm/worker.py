"""A rank of an engine without a model: its connector, its pages, its block tables; "computing" writes and checks bytes (contents.py)."""

import copy
import dataclasses
import pickle
import types

import numpy as np
import settings
import torch
import vllm.distributed.kv_transfer.kv_transfer_state as kv_transfer_state
import vllm.distributed.parallel_state as parallel_state
from contents import page_bytes
from settings import STATES
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.forward_context import set_forward_context
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
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
    """Driven by Engine.step only; `engine` says what requests compute."""

    def __init__(self, engine, rank: int) -> None:
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
            settings.layer_name(g, i, self.stage): tensors[i]
            if window != STATES
            else layout.states(tensors[i], shape.blocks)
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
