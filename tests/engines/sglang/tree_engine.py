"""SGLang's engine without a model: its own requests, prefill admission, allocators, pools and tree, in its scheduler's order.

Computing a token writes what `kv_contents` says; each step reads all that attention would read, and every page is checked.
"""

import atexit
import itertools
import json
import random
import time
from array import array
from types import SimpleNamespace

import kv_contents
import torch
from kvist.sglang import radix_cache
from pools import wait_for
from sglang.srt.disaggregation.kv_events import EventPublisherFactory, KVEventBatch, uses_dynamo_format
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, Req
from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder
from sglang.srt.mem_cache.allocation import alloc_for_decode, alloc_for_extend
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestOutcome, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, evict_from_tree_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.registry import TreeCacheBuildContext
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams

_names = itertools.count()
_open: list["TreeEngine"] = []
_overrides = []  # of SGLang's configuration, which is one for a process: restored from the last to the first when no engine is open


def kv_pool(kind, tokens, page, layers=3):
    if kind == "mla":
        return MLATokenToKVPool(tokens, page, torch.bfloat16, 16, 8, layers, "cpu", False)
    return MHATokenToKVPool(tokens, page, torch.bfloat16, 2, 8, layers, "cpu", False, enable_alt_stream=False)


class TreeEngine:
    """tokens: of the pool; events: SGLang's configuration of its publisher."""

    def __init__(
        self,
        socket,
        *,
        kind="mha",
        tokens=256,
        page=4,
        chunk=8,
        prefill=24,
        rows=16,
        group=None,
        metrics=False,
        events=None,
        **settings,
    ):
        patient = {"lookup_timeout_s": 10.0, "load_timeout_s": 20.0, "store_timeout_s": 20.0}  # tests share their machine
        extra = {"socket": socket, "weights": "toy", "chunk_tokens": chunk, **patient, **settings}
        override = get_context().override_server_args(
            page_size=page,
            attention_backend="torch_native",
            hicache_storage_backend_extra_config=json.dumps(extra),
        )
        args = override.install()
        _overrides.append(override)
        self.page, self.chunk, self.prefill = page, chunk, prefill
        self.pool = kv_pool(kind, tokens, page)
        if page == 1:
            self.allocator = TokenToKVPoolAllocator(tokens, torch.bfloat16, "cpu", self.pool, False)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(tokens, page, torch.bfloat16, "cpu", self.pool, False)
        self.tokens = tokens
        self.rows = ReqToTokenPool(rows, tokens, "cpu", False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page,
            tp_cache_group=group,
            enable_metrics=metrics,
            enable_kv_cache_events=events is not None,
            dynamo_kv_event_format=uses_dynamo_format(events),
        )
        self.context = context(args, params)
        self.tree = radix_cache.build(self.context)
        self.publisher = EventPublisherFactory.create(events)
        _open.append(self)
        self.waiting: list[Req] = []
        self.running: list[Req] = []
        self.chunked: Req | None = None
        self.finished: list[Req] = []
        self.cached: dict[str, int] = {}  # [rid] tokens that weren't computed at the first admission
        self.retracted = 0
        self._decoded = 0  # batches
        self.starved = 0
        self.waited = 0  # times that an admission was put off for a load

    @property
    def counts(self):
        return self.tree.side.counts

    # ---- requests ----

    def add(self, tokens, *, max_new=1, salt=None, lora=None, extra_key=None) -> Req:
        sampling = SamplingParams(max_new_tokens=max_new)
        req = Req(
            f"r{next(_names)}",
            "",
            array("q", tokens),
            sampling,
            cache_salt=salt,
            lora_id=lora,
            extra_key=extra_key,
            vocab_size=1000,
        )
        self.waiting.append(req)
        return req

    def abort(self, req: Req) -> None:
        """As SGLang's abort_request, at a safe point."""
        if req in self.waiting:
            self.waiting.remove(req)
            self.tree.finish(req.cache_request_handle, CacheRequestOutcome.ABORT)
            return
        req.finished_reason = FINISH_ABORT("aborted")
        if req is self.chunked:
            self.chunked = None
            self.tree.finish(req.cache_request_handle, CacheRequestOutcome.ABORT)
            release_kv_cache(req, self.tree, checkpoint=False)
        elif req in self.running:
            self.running.remove(req)
            release_kv_cache(req, self.tree, checkpoint=True)

    # ---- a step ----

    def step(self) -> bool:
        """False: there was nothing to run."""
        admitted = self._admit()
        if admitted:
            self._extend(admitted)
        elif self.running:
            self._decode()
            self._decoded += 1
        else:
            return False
        self.tree.flush_pending_backups()
        if admitted or self._decoded % 40 == 0:
            self.publish()
        self.check()
        return True

    def publish(self) -> None:
        """As SGLang's scheduler does after each batch that prefills and each 40th that decodes, and while it is idle."""
        if events := self.tree.take_events():
            self.publisher.publish(KVEventBatch(ts=time.time(), events=events))

    def run(self, seconds=60.0) -> None:
        """Until all requests are finished; `seconds` is for liveness."""
        until = time.monotonic() + seconds
        while self.step() or self.waiting or self.chunked is not None:
            assert time.monotonic() < until, "requests don't come to their end"

    def _admit(self) -> list[Req]:
        if self.chunked is not None and self.chunked.extend_end > self.chunked.prefix_len:
            checkpoint_kv_cache(self.chunked, self.tree)
        batch = SimpleNamespace(reqs=self.running, batch_size=lambda: len(self.running))
        adder = PrefillAdder(self.page, self.tree, self.allocator, batch, 0.1, 4096, self.prefill)
        if self.chunked is not None:
            self.chunked.init_next_round_input()
            self.chunked = adder.add_chunked_req(self.chunked)
        for req in list(self.waiting):
            if len(adder.can_run_list) + len(self.running) + 1 >= self.rows.size:
                break
            req.init_next_round_input(self.tree)
            verdict = adder.add_one_req(req, has_chunked_req=self.chunked is not None, truncation_align_size=None)
            if adder.can_run_list and adder.can_run_list[-1] is req:
                self.waiting.remove(req)
                self.cached.setdefault(req.rid, req.prefix_len)
            elif verdict == AddReqResult.OTHER and req.host_hit_length:
                self.waited += 1
            if verdict != AddReqResult.CONTINUE:
                break
        if adder.new_chunked_req is not None:
            assert self.chunked is None
            self.chunked = adder.new_chunked_req
        return adder.can_run_list

    def _batch(self, reqs, **extra):
        return SimpleNamespace(
            reqs=reqs,
            device="cpu",
            tree_cache=self.tree,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            hisparse_coordinator=None,
            model_config=SimpleNamespace(is_encoder_decoder=False),
            maybe_evict_swa=lambda: None,
            is_dllm=lambda: False,
            **extra,
        )

    def _extend(self, reqs) -> None:
        lengths = torch.tensor([req.extend_end for req in reqs])
        batch = self._batch(
            reqs,
            prefix_lens=[req.prefix_len for req in reqs],
            extend_lens=[req.extend_len for req in reqs],
            extend_num_tokens=sum(req.extend_len for req in reqs),
            seq_lens=lengths,
            seq_lens_cpu=lengths,
        )
        alloc_for_extend(batch)
        for req in reqs:
            self._forward(req, req.prefix_len, req.extend_end)
        for req in reqs:
            if req is self.chunked:
                continue
            self._token(req)
            if req.finished():
                self._finish(req)
            else:
                checkpoint_kv_cache(req, self.tree)
                self.running.append(req)

    def _decode(self) -> None:
        while len(self.running) > 1 and not self._room(len(self.running)):
            self._retract(self.running.pop())
        if not self._room(len(self.running)):
            # SGLang aborts a last request that has no room. Only pages of loads in which kvistd was stopped may bring it to that.
            assert self.tree.side.tokens_in_flight > 0, "a running request has no room for its next token"
            self._retract(self.running.pop())
            self.starved += 1
            return
        lengths = torch.tensor([req.kv.kv_committed_len for req in self.running])
        indices = torch.tensor([req.kv.req_pool_idx for req in self.running])
        batch = self._batch(
            self.running, seq_lens=lengths, seq_lens_cpu=lengths, req_pool_indices=indices, req_pool_indices_cpu=indices
        )
        for req in self.running:
            req.refresh_fill_ids()
        alloc_for_decode(batch, 1)
        for req in list(self.running):
            self._forward(req, req.kv.kv_committed_len - 1, req.kv.kv_committed_len)
            self._token(req)
            if req.finished():
                self.running.remove(req)
                self._finish(req)

    def _room(self, requests) -> bool:
        wanted = sum(-req.kv.kv_committed_len % self.page == 0 for req in self.running[:requests]) * self.page
        evict_from_tree_cache(self.tree, wanted)
        return self.allocator.available_size() >= wanted

    def _retract(self, req) -> None:
        release_kv_cache(req, self.tree, checkpoint=False)
        req.reset_for_retract()
        self.waiting.append(req)
        self.retracted += 1

    def _forward(self, req, first, end) -> None:
        """The model: reads the KV of all tokens before, writes that of [first, end)."""
        tokens = (req.origin_input_ids + req.output_ids)[:end]
        numbers = kv_contents.prefixes(tokens, req)
        row = self.rows.req_to_token[req.kv.req_pool_idx]
        bad = kv_contents.wrong(self.pool, row[:first].long(), numbers[:first])
        assert not bad, f"{req.rid} reads wrong KV of tokens {bad} of {first}, {self.cached.get(req.rid)} of them cached"
        kv_contents.write(self.pool, row[first:end].long(), numbers[first:])

    def _token(self, req) -> None:
        tokens = req.origin_input_ids + req.output_ids
        req.output_ids.append(random.Random(sum(tokens[-8:]) * 31 + len(tokens)).randrange(1000))
        if len(req.output_ids) >= req.sampling_params.max_new_tokens:
            req.finished_reason = FINISH_LENGTH(len(req.output_ids))

    def _finish(self, req) -> None:
        release_kv_cache(req, self.tree, checkpoint=True)
        self.finished.append(req)

    # ---- what must hold ----

    def check(self) -> None:
        """SGLang's own invariant: every token of the pool is free, in the tree, or a request's."""
        owners = self.running + ([self.chunked] if self.chunked is not None and self.chunked.kv.holds_kv else [])
        private = sum(-(-(req.kv.kv_allocated_len - req.kv.cache_protected_len) // self.page) * self.page for req in owners)
        parts = (self.allocator.available_size(), self.tree.evictable_size(), self.tree.protected_size(), private)
        assert sum(parts) == self.tokens, f"free, cached, locked, of requests: {parts}, of {self.tokens} tokens"

    def settle(self, condition=None, seconds=20.0) -> None:
        """Until nothing is under way between the tree and kvistd."""

        def quiet():
            self.tree.flush_pending_backups()
            return not self.tree.side.busy

        wait_for(condition or quiet, seconds)

    def check_tree(self) -> None:
        """Every page that the tree would give to a finished request's tokens."""
        for req in self.finished:
            tokens = req.origin_input_ids + req.output_ids
            found = self.tree.match_prefix(MatchPrefixParams(RadixKey(tokens, req.extra_key, cache_salt=req.cache_salt)))
            indices = self.tree.path_device_indices(found.last_device_node)[: found.device_prefix_len]
            numbers = kv_contents.prefixes(tokens, req)[: len(indices)]
            bad = kv_contents.wrong(self.pool, indices.long(), numbers)
            assert not bad, f"the tree holds wrong KV for tokens {bad} of {req.rid}"

    def flush(self) -> None:
        """As SGLang's flush_cache, with nothing running."""
        assert not self.running and not self.waiting and self.chunked is None
        self.tree.reset()
        self.rows.clear()
        self.allocator.clear()

    def close(self) -> None:
        """Ends what runs, and checks that nothing is left locked."""
        for req in [*self.waiting, *self.running, *([self.chunked] if self.chunked else [])]:
            self.abort(req)
        self.settle()
        self.check_tree()
        assert self.tree.protected_size() == 0
        assert self.allocator.available_size() + self.tree.evictable_size() == self.tokens
        self.shut()

    def shut(self) -> None:
        self.publisher.shutdown()
        atexit.unregister(self.publisher.shutdown)  # SGLang's own, which says once more what was left
        self.tree.release_host_resources()
        _open.remove(self)
        while _overrides and not _open:
            _overrides.pop().restore()


def context(args, params, **changes) -> TreeCacheBuildContext:
    runner = SimpleNamespace(forward_stream=None)
    fields = {
        "server_args": args,
        "params": params,
        "is_hybrid_swa": False,
        "is_hybrid_ssm": False,
        "enable_hierarchical_cache": False,
        "disable_radix_cache": False,
        "tp_worker": SimpleNamespace(model_runner=runner),
        "model_config": None,
        "tp_size": 1,
        "tp_rank": 0,
        "tp_group": None,
    }
    return TreeCacheBuildContext(**{**fields, **changes})
