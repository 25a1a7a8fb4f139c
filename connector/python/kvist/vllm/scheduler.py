"""The scheduler's side: what is asked, loaded and stored for each request, and which blocks are busy with it.

A request's life here:

  on_new_request        keys of its prompt, lookup begins
  get_num_new_matched   the answer, as often as asked; None while it isn't known. After a preemption the lookup begins anew
  update_state_after_alloc   load planned, or the lease given back
  build_connector_meta  loads of this step; stores of chunks that are full with it and of states that it makes; hints about requests that have finished
  update_connector_output    loads and stores that have ended
  request_finished      load given up, lease given back

Blocks: a store that reads a block which vLLM gives to somebody else is stopped before that one writes (`Readers`), or where it can't be stopped in
  time has a reference until it has ended, as has a block that a late load may still write: nobody gets it before it is quiet. No step waits for kvistd.
Leases: from the answer until the load has ended, the blocks are found to be there already, or the request is gone.
Threads: the scheduler's.
"""

import itertools
import math
import operator
import time
import uuid
from array import array
from collections import deque
from typing import Any, NamedTuple

from vllm.distributed.kv_events import KVCacheEvent
from vllm.logger import init_logger
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

import kvist
from kvist.chain import can_be_bound
from kvist.hangs import HangWatch
from kvist.vllm import identity
from kvist.vllm.events import KvEvents
from kvist.vllm.groups import EngineGroup, Tables
from kvist.vllm.plan import Handshake, Load, LoadPart, Plan, Report
from kvist.vllm.prompt import Prompt
from kvist.vllm.settings import Settings
from kvist.vllm.stats import Counters
from kvist.vllm.stores import Stores
from kvist.vllm.tracked import Loading, Tracked
from kvist.vllm.turns import Turns

logger = init_logger(__name__)

_BLOCK_ID = operator.attrgetter("block_id")
_MISS = kvist.Hit(0, 0)
# A lookup that kvistd answers at once is worth waiting for: two wake-ups across cores (reference: 30 to 55 us on a VM each).
_PATIENCE_S = 50e-6
# After so much of a step what can wait comes with later ones: stores of requests that decode, whose blocks stay theirs, and hints. One more is
# begun before.
_STORES_S = 30e-6
_HINTS_S = 25e-6
_HINTS_WAITING = 64  # more than that don't wait
# More tokens than that are hashed in a step of their own before their chunk is stored, unless so many turns wait that there is none to spare: a chunk
# of 256 takes 20 to 50 us, as its store does.
_HASHED_BESIDE = 64
_TURNS_WAITING = 64
_PREFILL_TOKENS = 64  # kvistd is told what computing them takes; of fewer the time is that of reading the weights

_STOPPED = {
    RequestStatus.FINISHED_STOPPED: kvist.StopReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: kvist.StopReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: kvist.StopReason.ABORTED,
}


class _Hint(NamedTuple):
    """What is said of the chunks [first, until) of a request that has finished."""

    prompt: Prompt
    first: int
    until: int
    words: dict[str, Any]


class SchedulerSide:
    def __init__(
        self,
        settings: Settings,
        groups: list[EngineGroup],
        chunk_tokens: int,
        ranks: int,
        step_tokens: int,
        decoded: int,
        stores_hold: bool,
    ) -> None:
        """step_tokens: as many as vLLM computes in one step at most; decoded: of a request that decodes, drafts included; stores_hold: see
        `Stores`."""
        self._settings = settings
        self._groups = groups
        self._chunk_tokens = chunk_tokens
        self._ranks = ranks
        blocks_per_step = -(-step_tokens // min(group.block_tokens for group in groups))
        self._evict_ahead = settings.evict_ahead or min(2 * blocks_per_step, 512)
        self._stores_hold = stores_hold
        self._layerwise = settings.load == "layerwise"
        # A load inside the step must leave it a token to compute. And of a whole prompt vLLM computes the last token once more, but the state after
        # it knows it already.
        self._leave_a_token = self._layerwise or any(group.recurrent for group in groups)
        self._client: kvist.Client | None = None
        self._tables: Tables | None = None
        self._stores: Stores | None = None  # when connected and bound, which come in either order
        self._events: KvEvents | None = None  # the same, and if vLLM publishes any
        self._manager: KVCacheManager | None = None
        self._pool: BlockPool | None = None
        self._requests: dict[str, Tracked] = {}
        self._loading: dict[str, Loading] = {}  # [request] until all ranks have ended, also when the request is gone
        self._decoded = decoded
        self._turns = Turns(decoded)
        self._next = Plan()  # of the next step
        self._to_hint: deque[_Hint] = deque()
        self._late: dict[int, tuple[list[KVCacheBlock], int]] = {}  # [job] blocks, ranks that may still write
        self._inside: dict[int, int] = {}  # [job] ranks that have ended a load inside a step
        self._inside_failed: set[int] = set()
        self._jobs = itertools.count(1)
        self._watch = HangWatch()
        self._generation = ""
        self._adapters = identity.Adapters()
        self.counters = Counters()

    # ---- set-up ----

    def connect(self, handshakes: list[Handshake]) -> None:
        """Opens the scheduler's session with what the workers described. Raises ValueError where they differ."""
        first = handshakes[0]
        for rank, other in enumerate(handshakes):
            if other != first:
                raise ValueError(
                    f"kvist needs the same pages on all ranks: rank 0 has {first.space.groups}, rank {rank} {other.space.groups}; "
                    "pipeline stages must have the same number of layers"
                )
        self._tables = Tables(self._groups, first.tables, self._chunk_tokens)
        self._client = kvist.Client(
            role=kvist.Role.SCHEDULER,
            instance=first.instance,
            space=first.space,
            socket=self._settings.socket,
            ask_again=True,
            by_layer=self._layerwise,
        )
        self._settle()

    def bind(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._pool = manager.block_pool
        self._settle()

    def _settle(self) -> None:
        if self._manager is None or self._tables is None:
            return
        if self._pool.enable_kv_cache_events:
            self._events = KvEvents(self._pool, self._tables)
        if self._settings.store != "never":
            ahead = self._evict_ahead if self._settings.store == "on_eviction" else None
            self._stores = Stores(
                self._manager,
                self._tables,
                self._ranks,
                self._jobs,
                ahead,
                self._events,
                self._stores_hold,
                self._client.first_needed,
            )

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # ---- lookup ----

    def new_request(self, request: Request) -> None:
        # What can change under a chain's feet, or has content that no key could bind, is left to vLLM.
        if (
            self._client is None
            or request.resumable
            or request.prompt_embeds is not None
            or not can_be_bound(request.cache_salt)
            or not all(can_be_bound(feature.identifier) for feature in request.mm_features)
        ):
            return
        lora = self._adapters.name_of(request.lora_request)
        if lora is None or not can_be_bound(lora):
            return
        prompt = Prompt(request, self._chunk_tokens, lora, self._generation)
        tracked = self._requests[request.request_id] = Tracked(request, prompt, self._chunk_tokens)
        self._ask(tracked)

    def _ask(self, tracked: Tracked) -> None:
        tracked.hit = _MISS
        last = (tracked.request.num_tokens - 1) // self._chunk_tokens if self._leave_a_token else None
        keys = tracked.prompt.keys(0, last)
        if not keys or self._watch.hangs():
            return
        try:
            tracked.op = self._client.lookup_start(
                keys, lease_s=self._settings.lease_s, deadline_s=self._settings.lookup_timeout_s
            )
        except kvist.KvistError as error:
            self.counters.lookup(error.status)
            return
        tracked.hit = None
        tracked.asked_at = time.monotonic()

    def _answer(self, tracked: Tracked, wait_for_slow: bool) -> kvist.Hit | None:
        """None: not known yet. wait_for_slow: a hit that is still on its way from a slower tier isn't known either, for some time."""
        if tracked.hit is not None:
            return tracked.hit
        hit = self._client.lookup_result(tracked.op)
        if hit is None and time.monotonic() - tracked.asked_at < _PATIENCE_S:
            hit = self._client.lookup_result(tracked.op, _PATIENCE_S)
        if hit is None:
            return None
        tracked.op = 0
        if wait_for_slow and hit.coming and self._may_wait(tracked):
            self._client.release(hit.lease)
            self._ask(tracked)
            return tracked.hit
        tracked.hit = hit
        self.counters.lookup(hit.status)
        self._watch.answered(in_time=hit.status != kvist.Status.DEADLINE_EXCEEDED)
        tracked.kvistd_has(hit.chunks)
        if self._events is not None:
            self._events.found(tracked.request, tracked.prompt, hit.chunks)
        return hit

    def _may_wait(self, tracked: Tracked) -> bool:
        """Whether there is time left for slower tiers: asking again is cheap, and costs no blocks."""
        now = time.monotonic()
        tracked.slow_since = tracked.slow_since or now
        return now - tracked.slow_since < self._settings.slow_timeout_s

    def _forget_hit(self, tracked: Tracked) -> None:
        """Gives back the lease, or the question."""
        if tracked.op:
            self._client.cancel(tracked.op)
            tracked.op = 0
        if tracked.hit is not None and tracked.hit.lease:
            self._client.release(tracked.hit.lease)
            tracked.hit = tracked.hit._replace(lease=0)

    def matched_tokens(self, request: Request, computed: int) -> int | None:
        """Tokens beyond `computed` that can be loaded. Changes nothing that asking again would not."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or tracked.loading is not None:
            return 0
        if tracked.preemptions != request.num_preemptions:
            # Its blocks are gone, and its answer so far has become part of the prompt.
            tracked.preemptions = request.num_preemptions
            tracked.may_load = True
            tracked.slow_since = 0.0
            self._forget_hit(tracked)
            tracked.prompt.extend(request.num_tokens)
            self._ask(tracked)
        if not tracked.may_load:
            return 0
        if (
            tracked.hit is not None
            and tracked.hit.lease
            and time.monotonic() - tracked.asked_at > self._settings.lease_s / 2
        ):
            self._forget_hit(tracked)
            self._ask(tracked)
        hit = self._answer(tracked, wait_for_slow=True)
        if hit is None:
            return None
        tracked.computed = computed
        tokens = hit.chunks * self._chunk_tokens - computed
        return tokens if hit.lease and tokens >= self._settings.load_min_tokens and self._settings.load != "never" else 0

    # ---- load ----

    def allocated(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            return
        self._turns.next(tracked)
        if external == 0:  # nothing to load, or loaded already
            if tracked.loading is None and tracked.hit is not None:
                self._forget_hit(tracked)
            return
        hit = tracked.hit
        parts, touched = self._load_parts(tracked, blocks, external)
        if_failed: set[int] = set()
        if self._layerwise:  # also those that the step computes from what it loads
            for (table, _), block_tokens in zip(self._tables, self._tables.block_tokens):
                first = tracked.computed // block_tokens
                if_failed.update(block.block_id for block in blocks.blocks[table][first:] if not block.is_null)
        loading = tracked.loading = Loading(next(self._jobs), hit.lease, touched, if_failed)
        tracked.hit = hit._replace(lease=0)  # the load's from here on
        self._loading[request.request_id] = loading
        self._next.loads.append(Load(loading.job, request.request_id, hit.lease, parts, self._layerwise))
        self.counters["asked_tokens"] += external

    def _load_parts(
        self, tracked: Tracked, blocks: KVCacheBlocks, external: int
    ) -> tuple[list[LoadPart], list[KVCacheBlock]]:
        chunks = tracked.hit.chunks
        begin, end = tracked.computed, tracked.computed + external
        if end != chunks * self._chunk_tokens:
            return [], []  # vLLM took less: windows that end elsewhere need other chunks than the lease keeps
        parts: list[LoadPart] = []
        touched: list[KVCacheBlock] = []
        for group, ((table, per_chunk), block_tokens) in enumerate(zip(self._tables, self._tables.block_tokens)):
            if group in self._tables.recurrent:  # the state where the hit ends
                state = blocks.blocks[table][chunks * per_chunk - 1 : chunks * per_chunk]
                if not state or state[0].is_null:
                    return [], []
                touched += state
                parts.append(LoadPart(group, chunks - 1, 1, array("I", [state[0].block_id])))
                continue
            first_chunk = max(begin // self._chunk_tokens, self._client.first_needed(group, chunks))
            at = first_chunk * per_chunk
            wanted = blocks.blocks[table][at : chunks * per_chunk]
            pages = array("I", map(_BLOCK_ID, wanted))
            skip = max(0, begin // block_tokens - at)  # vLLM's own hit: not to be written over
            while skip < len(wanted) and wanted[skip].is_null:
                skip += 1  # outside the window
            pages[:skip] = array("I", [kvist.NO_PAGE]) * skip
            if len(pages) != (chunks - first_chunk) * per_chunk:
                return [], []
            touched += wanted[skip:]
            parts.append(LoadPart(group, first_chunk, chunks - first_chunk, pages))
        return parts, touched

    # ---- a step ----

    def plan(self, output: SchedulerOutput) -> Plan:
        plan, self._next = self._next, Plan()
        began = time.perf_counter()
        plan.prefill = self._only_prefill(output.num_scheduled_tokens)
        if self._stores is not None:
            plan.stop = self._stores.take_stopped()
            until = began + _STORES_S
            if self._tables.recurrent:
                self._take_states(output, plan)
                until = math.inf  # states don't wait
            self._look_at_all(output, until, plan)
            self._stores.due(plan)
            until = began + _HINTS_S
            if self._to_hint and (len(self._to_hint) > _HINTS_WAITING or time.perf_counter() < until):
                self._give_hints(until)
        return plan

    def _only_prefill(self, scheduled: dict[str, int]) -> tuple[int, int] | None:
        """What tells how long computing takes."""
        if len(scheduled) != 1:
            return None
        ((request_id, tokens),) = scheduled.items()
        tracked = self._requests.get(request_id)
        return (tracked.request.num_computed_tokens, tokens) if tracked is not None and tokens >= _PREFILL_TOKENS else None

    def _take_states(self, output: SchedulerOutput, plan: Plan) -> None:
        for request_id, states in output.kv_connector_block_state.boundary_state_offloads.items():
            tracked = self._requests.get(request_id)
            if tracked is not None:
                self._stores.offered(tracked, states, plan)

    def _look_at_all(self, output: SchedulerOutput, until: float, plan: Plan) -> None:
        """Those that get a prompt's tokens in any case: they may end with this step. The others while there is time, but one in any case; where prompts'
        chunks have taken the time, one that has waited for long."""
        requests, scheduled = self._requests, output.num_scheduled_tokens
        for tracked in self._turns.begin_step(scheduled, output.total_num_scheduled_tokens, requests):
            self._look(tracked, scheduled[tracked.request.request_id], plan)
        only_late = bool(plan.stores) and time.perf_counter() > until
        while (tracked := self._turns.take(requests, only_late)) is not None:
            self._look(tracked, scheduled.get(tracked.request.request_id, 0), plan)
            if time.perf_counter() > until:
                return

    def _look(self, tracked: Tracked, scheduled: int, plan: Plan) -> None:
        """It gets so many tokens in this step."""
        request = tracked.request
        computed = request.num_computed_tokens + scheduled
        if computed >= tracked.next_store_tokens:
            # Drafts are scheduled before they are accepted: what isn't among the request's tokens yet may be rejected.
            known = min(computed, request.num_tokens)
            if known >= tracked.next_store_tokens:
                if self._hashes_first(tracked):
                    tracked.prompt.extend(known)
                    self._turns.next(tracked)
                    return
                self._filled(tracked, known // self._chunk_tokens, (request.num_computed_tokens, computed), plan)
        if request.status == RequestStatus.RUNNING:  # else its turn comes when it has blocks (again)
            missing = tracked.next_store_tokens - computed
            if missing <= self._decoded:
                # Full with the next step: what is known of it is hashed in this one, the little that it lacks with its store.
                tracked.prompt.extend(request.num_tokens)
            else:
                missing -= self._decoded
            self._turns.next(tracked, missing)

    def _hashes_first(self, tracked: Tracked) -> bool:
        """Whether its tokens are hashed in this step and its full chunk is stored with the next. States can't wait."""
        much = tracked.prompt.lacks(tracked.next_store_tokens) > _HASHED_BESIDE
        return much and not self._tables.recurrent and self._turns.waiting <= _TURNS_WAITING

    def _filled(self, tracked: Tracked, chunks: int, step: tuple[int, int], plan: Plan) -> None:
        """With this step, of tokens [step[0], step[1]), the first `chunks` are full."""
        if tracked.hit is None and self._answer(tracked, wait_for_slow=False) is None:
            return  # kvistd hasn't said yet what it has: with the next chunk
        if tracked.loading is None and tracked.hit.lease:  # answered so late that vLLM had no use for it
            self._forget_hit(tracked)
        self._stores.filled(tracked, chunks, step, plan)

    # ---- what came of it ----

    def update(self, output: KVConnectorOutput) -> None:
        report = output.kv_connector_worker_meta
        if isinstance(report, Report):
            self._take(report)
        failed = output.failed_recving
        for request_id in output.finished_recving or ():
            self._loaded(request_id, request_id not in failed)

    def _loaded(self, request_id: str, well: bool) -> None:
        """All ranks have ended this request's load."""
        loading = self._loading.pop(request_id, None)
        if loading is None:
            return
        if self._client is not None:
            self._client.release(loading.lease)
        tracked = self._requests.get(request_id)
        if tracked is not None and tracked.loading is loading:
            tracked.loading = None
            if not well:  # computed instead; vLLM asks again and is told so
                tracked.may_load = False
                tracked.kvistd_has(0)
                self._turns.next(tracked)

    def _take(self, report: Report) -> None:
        for job, ranks in report.late.items():
            blocks, writing = self._late.get(job) or (self._blocks_of(job), 0)
            if not writing:
                self._pool.touch(blocks)
            self._late[job] = (blocks, writing + ranks)
        for job, ranks in report.quiet.items():
            blocks, writing = self._late[job]
            if writing > ranks:
                self._late[job] = (blocks, writing - ranks)
            else:
                del self._late[job]
                self._pool.free_blocks(reversed(blocks))
        if self._stores is not None:
            for request_id in self._stores.take(report):
                tracked = self._requests.get(request_id)
                if tracked is not None:
                    tracked.offer_again()
                    self._turns.next(tracked)
        if report.refused:
            self.counters["refused_stores"] += len(report.refused)
        for job, ranks in report.inside.items():
            self._inside[job] = self._inside.get(job, 0) + ranks
            self._inside_failed |= {job} if job in report.inside_failed else set()
            if self._inside[job] == self._ranks:
                del self._inside[job]
                request_id, loading = next(item for item in self._loading.items() if item[1].job == job)
                if job in self._inside_failed:
                    self._hide(loading.if_failed)
                self._loaded(request_id, job not in self._inside_failed)
                self._inside_failed.discard(job)

    def _hide(self, wrong: set[int]) -> None:
        """Takes blocks whose load inside the step failed, and all that was computed from them, out of vLLM's prefix cache. vLLM leaves them
        there for their requests to compute them anew; but those may be preempted or aborted before they have."""
        hidden = set(wrong)
        for request_id in self._requests:  # others may have hit them in the same step
            for blocks in self._manager.get_blocks(request_id).blocks:
                ids = [block.block_id for block in blocks]
                first = next((i for i, block in enumerate(ids) if block in wrong), len(ids))
                hidden.update(ids[first:])
        hidden.discard(self._pool.null_block.block_id)
        self._manager.evict_blocks(hidden)

    def _blocks_of(self, job: int) -> list[KVCacheBlock]:
        return next(loading.blocks for loading in self._loading.values() if loading.job == job)

    @property
    def stores_hold_blocks(self) -> bool:
        return self._stores is not None and self._stores.hold_blocks

    def take_events(self) -> list[KVCacheEvent]:
        if self._events is None or self._client is None:
            return []
        return self._events.take(self._client, self._watch)

    def finished(self, request: Request) -> None:
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None or self._client is None:
            return
        if tracked.loading is not None:
            self._next.give_up.append(tracked.loading.job)
        elif tracked.stored_first is not None:
            if (words := self._words_about(request)) is not None:
                self._to_hint.append(_Hint(tracked.prompt, tracked.stored_first, tracked.next_store, words))
            if not self._requests:  # perhaps there is no next step for a long time
                self._give_hints(math.inf)
        self._forget_hit(tracked)

    def _give_hints(self, until: float) -> None:
        """At least one: they must not pile up where every step is long."""
        while self._to_hint:
            hint = self._to_hint.popleft()
            self._client.hint(hint.prompt.keys(hint.first, hint.until), **hint.words)
            if time.perf_counter() > until:
                return

    @staticmethod
    def _words_about(request: Request) -> dict[str, Any] | None:
        """What is said of the chunks that this request added: why it ended; the API's `kv_transfer_params` may say more. None: nothing."""
        params: Any = request.kv_transfer_params  # whatever a client has sent
        told = params.get("kvist") if isinstance(params, dict) else None
        told = {} if told is None else told
        stop = _STOPPED.get(request.status, kvist.StopReason.UNKNOWN)
        try:
            reuse = kvist.ExpectedReuse[str(told.get("expected_reuse", "unknown")).upper()]
            stop = kvist.StopReason[str(told["stop_reason"]).upper()] if "stop_reason" in told else stop
        except (KeyError, AttributeError):
            # Without the client's words: it could fill the log with them.
            logger.warning_once(
                "the kv_transfer_params.kvist of a request is no hint that kvist knows; examples/vllm has them"
            )
            return None
        return {"session_ended": bool(told.get("session_ended")), "expected_reuse": reuse, "stop_reason": stop}

    def reset(self) -> None:
        """From here on nothing that was stored before is found: a reset follows new weights. Nor is what is stored from here on found by
        others, who can't know of them."""
        self._generation = uuid.uuid4().hex
        if self._stores is not None:
            self._stores.forget()
        if self._events is not None and self._client is not None:
            self._events.forget_all(self._client)
        for tracked in list(self._requests.values()):
            self._forget_hit(tracked)
            tracked.hit = _MISS
            del self._requests[tracked.request.request_id]
