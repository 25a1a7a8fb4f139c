"""A connector without kvistd, in this process's memory: slow on purpose, right, and breakable.

It shows that the tests can fail: `break_it` plants one bug, named by the rule that it breaks (BUGS). Copies are asynchronous: a store
reads its pages only `slow` steps after it was asked for, a load writes its pages `slow` steps later, as a far-away daemon might.
"""

import dataclasses

import torch
from contents import Identity, Names
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

BUGS = (
    "store_reads_given_pages",  # doesn't finish stores before their pages are overwritten
    "resumed_not_loaded",  # takes a preempted request for one that it has dealt with
    "lease_leaks",  # forgets the lease of a request that is gone before its load
    "asked_again_moves_stores",  # get_num_new_matched_tokens counts what it promised as stored
    "freed_twice",  # reports an aborted load as received and as sent
    "load_into_freed_pages",  # reports an aborted load as over while it still writes
    "finished_load_of_gone_request",  # reports loads whose requests have ended already
    "second_update_loads_again",  # takes the second update_state_after_alloc for another load
    "drafts_stored",  # counts drafts as computed before they are accepted
    "salt_ignored",
    "failed_load_not_reported",
    "failed_load_asked_again",  # promises the same again after a failure: never ends
)
STORE: dict[tuple, list[torch.Tensor]] = {}  # (space, chunk's last name, group) -> the pages' bytes, [layer]
LEASES: set[tuple[str, int]] = set()


@dataclasses.dataclass
class Plan(KVConnectorMetadata):
    loads: list = dataclasses.field(default_factory=list)  # (request id, [(keys' tail, group, blocks)])
    stores: list = dataclasses.field(default_factory=list)  # (key, group, blocks)
    aborted: set = dataclasses.field(default_factory=set)
    given: set = dataclasses.field(default_factory=set)  # blocks that have a new owner, or none


class ReferenceConnector(KVConnectorBase_V1, SupportsHMA):
    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.chunk = extra["chunk_tokens"]
        self.slow = extra.get("slow", 2)
        self.broken = extra.get("break_it", "")
        self.failing = extra.get("failing", False)  # every load fails
        self.block = vllm_config.cache_config.block_size
        self.rank = vllm_config.parallel_config.rank
        if role == KVConnectorRole.SCHEDULER:
            self.known: dict[str, Known] = {}
            self.loads: list = []
            self.aborted: set[str] = set()
            self.owner: dict[int, str] = {}
        else:
            self.reads: list = []  # [steps left, key, group, blocks]
            self.writes: list = []  # [steps left, request id, parts]
            self.loads_begun: list[str] = []

    # ---- scheduler ----

    def on_new_request(self, request):
        self.known[request.request_id] = Known(
            Names(
                Identity(
                    "" if self.broken == "salt_ignored" else request.cache_salt or "",
                    request.lora_request.lora_name if request.lora_request else "",
                    tuple((f.identifier, f.mm_position.offset, f.mm_position.length) for f in request.mm_features),
                )
            ),
            request,
        )

    def _chunks(self, request, tokens) -> list[int]:
        """The name of each full chunk's last token."""
        names = self.known[request.request_id].names.of(list(request.all_token_ids)[:tokens])
        return [names[i] for i in range(self.chunk - 1, tokens, self.chunk)]

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        known = self.known[request.request_id]
        if known.failed and self.broken != "failed_load_asked_again":
            return 0, False
        if self.broken == "resumed_not_loaded" and request.num_preemptions:
            return 0, False
        chunks = self._chunks(request, request.num_tokens)
        hit = 0
        for i in range(len(chunks), 0, -1):
            if all((chunks[j], g) in STORE for g in self._groups() for j in range(self._first_needed(g, i), i)):
                hit = i
                break
        if request.skip_reading_prefix_cache or hit * self.chunk <= num_computed_tokens:
            return 0, False
        LEASES.add((request.request_id, 0))
        known.hit = hit
        if self.broken == "asked_again_moves_stores":
            known.stored += hit * self.chunk
        return hit * self.chunk - num_computed_tokens, True

    def _groups(self):
        return range(len(self._kv_cache_config.kv_cache_groups))

    def _first_needed(self, group, chunks):
        window = getattr(self._kv_cache_config.kv_cache_groups[group].kv_cache_spec, "sliding_window", None) or 0
        return max(0, chunks * self.chunk - window + 1) // self.chunk if window else 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        known = self.known[request.request_id]
        if not num_external_tokens and not (self.broken == "second_update_loads_again" and known.loaded):
            if self.broken != "lease_leaks":
                LEASES.discard((request.request_id, 0))
            return
        chunks = self._chunks(request, request.num_tokens)
        first = known.hit * self.chunk - num_external_tokens if num_external_tokens else 0
        parts = []
        for g, ids in enumerate(blocks.get_block_ids()):
            for i in range(max(self._first_needed(g, known.hit), first // self.chunk), known.hit):
                pages = list(ids[i * self.chunk // self.block : (i + 1) * self.chunk // self.block])
                if num_external_tokens:
                    pages = [
                        p if (i * self.chunk // self.block + j) * self.block >= first else 0 for j, p in enumerate(pages)
                    ]
                parts.append(((chunks[i], g), g, pages))
        known.loaded = known.loading = True
        self.loads.append((request.request_id, parts))

    def build_connector_meta(self, output):
        plan = Plan(loads=self.loads, aborted=self.aborted)
        self.loads, self.aborted = [], set()
        state = output.kv_connector_block_state
        for request_id, count in output.num_scheduled_tokens.items():
            known = self.known[request_id]
            tables = state.get_block_ids(request_id)
            for ids in tables:
                for block in ids:
                    if self.owner.get(block) != request_id:
                        plan.given.add(block)
                        self.owner[block] = request_id
            self._plan_stores(plan, known.request, known, tables, output, count)
        return plan

    def _plan_stores(self, plan, request, known, tables, output, count):
        before = self._computed(output, request.request_id)
        tokens = list(request.all_token_ids)
        if self.broken == "drafts_stored":  # what the last step computed, at the begin of this one
            end, known.computed = min(known.computed, len(tokens)), before + count
        else:
            end = min(before + count, len(tokens))
        names = known.names.of(tokens[:end])
        for i in range(known.stored // self.chunk, end // self.chunk):
            for g in self._groups():
                ids = tables[g][i * self.chunk // self.block : (i + 1) * self.chunk // self.block]
                if 0 not in ids:
                    plan.stores.append(((names[(i + 1) * self.chunk - 1], g), g, list(ids)))
            known.stored = max(known.stored, (i + 1) * self.chunk)

    def _computed(self, output, request_id):
        for new in output.scheduled_new_reqs:
            if new.req_id == request_id:
                return new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        return cached.num_computed_tokens[cached.req_ids.index(request_id)]

    def update_connector_output(self, output):
        for request_id in output.finished_recving or ():
            if request_id in self.known:
                LEASES.discard((request_id, 0))
                self.known[request_id].loading = False
                self.known[request_id].failed |= request_id in output.failed_recving

    def request_finished_all_groups(self, request, block_ids):
        known = self.known.pop(request.request_id)
        if self.broken != "lease_leaks":
            LEASES.discard((request.request_id, 0))
        if known.loading:
            self.aborted.add(request.request_id)
            return self.broken == "freed_twice", None
        return False, None

    def request_finished(self, request, block_ids):
        return self.request_finished_all_groups(request, (block_ids,))

    # ---- worker ----

    def register_kv_caches(self, kv_caches):
        self.pages = [
            [kv_caches[name].view(torch.int32) for name in group.layer_names]
            for group in self._kv_cache_config.kv_cache_groups
        ]

    def _read(self, key, group, blocks):
        STORE.setdefault(key, [page[blocks].clone() for page in self.pages[group]])

    def _write(self, parts):
        for key, group, blocks in parts:
            for page, data in zip(self.pages[group], STORE[key]):
                for i, block in enumerate(blocks):
                    if block:
                        page[block] = data[i]

    def handle_preemptions(self, plan):
        if self.broken == "drafts_stored":
            for store in plan.stores:
                self._read(*store)
        left = []
        for read in self.reads:
            if self.broken != "store_reads_given_pages" and plan.given & set(read[3]):
                self._read(*read[1:])
            else:
                left.append(read)
        self.reads = left

    def start_load_kv(self, forward_context, **kwargs):
        for request_id, parts in self._get_connector_metadata().loads:
            self.writes.append([self.slow, request_id, parts])
            self.loads_begun.append(request_id)

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        for key, group, blocks in self._get_connector_metadata().stores:
            self.reads.append([self.slow, key, group, blocks])

    def get_transfer_results(self, finished_req_ids):
        aborted = self._get_connector_metadata().aborted
        results = KVConnectorTransferResults()
        for read in self.reads:
            read[0] -= 1
            if read[0] <= 0:
                self._read(*read[1:])
        self.reads = [read for read in self.reads if read[0] > 0]
        for write in self.writes:
            write[0] -= 1
            over = write[0] <= 0
            if write[1] in aborted and self.broken == "load_into_freed_pages":
                results.finished_recving.add(write[1])
                write[1] = None
            if write[1] in aborted and self.broken == "freed_twice":
                results.finished_sending.add(write[1])
            if over and not self.failing:
                self._write(write[2])
            if over and write[1] is not None:
                results.finished_recving.add(write[1])
                if self.failing and self.broken != "failed_load_not_reported":
                    results.failed_recving.add(write[1])
        self.writes = [write for write in self.writes if write[0] > 0]
        if self.broken == "finished_load_of_gone_request":
            results.finished_recving |= {request_id for request_id in finished_req_ids if request_id not in aborted}
        return results


@dataclasses.dataclass
class Known:
    names: Names
    request: object
    hit: int = 0
    stored: int = 0
    computed: int = 0
    loaded: bool = False
    loading: bool = False
    failed: bool = False
