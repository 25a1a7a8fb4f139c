"""Continuous batching: each step runs one batch of what is there to run, prompts in chunks, and every answer's next token.

A request is

    waiting   for room, or to hear what kvist has           -> _admit_next
    loading   its KV comes from kvist                       -> _collect_loads
    running   computing its prompt, then its answer         -> step; back to waiting when pages run out and it is youngest:
                                                               what it had is computed again, or loaded when it was stored
    finished  its answer is for take_answers

Choosing is greedy and the arithmetic is independent of batching (model.py says how), so an answer is a function of its
prompt alone, bit for bit. Threads: one.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torch_engine.kvist_cache import KvistCache, KvistOptions, KvistRequest, LoadState
from torch_engine.memory import PagedMemory
from torch_engine.model import PAGE_TOKENS, VOCABULARY, Model, Span
from torch_engine.page_pool import NO_CONTENT, PagePool

# How long a step waits when there is nothing to compute: short enough to notice a new request soon.
_IDLE_WAIT_S = 0.01
# How long stores may take to end before their pages are needed for something else. What isn't stored by then is computed
# again some day.
_FLUSH_WAIT_S = 0.2


@dataclasses.dataclass
class Answer:
    """A finished request."""

    id: int
    prompt_tokens: int
    tokens: list[int] = dataclasses.field(default_factory=list)  # without the prompt
    logits: Tensor | None = None  # [tokens, VOCABULARY]: what each token was chosen by
    local_tokens: int = 0  # of the prompt: KV found in this engine's pages
    kvist_tokens: int = 0  # of the prompt: KV loaded from kvist
    preemptions: int = 0
    time_to_first_token_s: float = 0.0  # since submit


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    kv_tokens: int = 16384  # KV memory; more means fewer preemptions
    batch_tokens: int = 512  # of prompts in one step; more makes other requests' tokens later
    sequences_max: int = 16  # running at once
    kvist: KvistOptions | None = None  # without, the engine keeps to itself
    # Called with the memory and with pages that a load has just filled. For negative controls, which spoil them.
    on_loaded: Callable[[PagedMemory, Sequence[int]], None] | None = None


@dataclasses.dataclass
class EngineStats:
    steps: int = 0
    tokens_computed: int = 0
    preemptions: int = 0


@dataclasses.dataclass(eq=False)
class _Sequence:
    tokens: list[int]  # prompt, then answer
    tokens_max: int
    submitted: float
    answer: Answer
    kvist: KvistRequest | None  # None: without kvist
    may_load: bool = True  # until a load of its fails: trying again and again could keep it from ever being computed
    logits: list[Tensor] = dataclasses.field(default_factory=list)
    pages: list[int] = dataclasses.field(default_factory=list)  # one reference each
    computed: int = 0  # tokens whose KV is in the pages
    named: int = 0  # pages that have a name in the pool
    content: int = NO_CONTENT  # of the last of them
    load_at: int = 0  # first token that the load under way brings
    load_end: int = 0  # past the last

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.computed


def _pages_for(tokens: int) -> int:
    return (tokens + PAGE_TOKENS - 1) // PAGE_TOKENS


class Engine:
    """A context manager; `close` it while kvistd may still copy."""

    def __init__(self, model: Model, options: EngineOptions = EngineOptions()) -> None:
        """Raises ValueError for options that leave no room, KvistError when kvistd refuses this engine; needs no kvistd."""
        if options.kv_tokens < PAGE_TOKENS or options.batch_tokens < 1 or options.sequences_max < 1:
            raise ValueError("kv_tokens, batch_tokens, sequences_max: room for at least a page, a token, a sequence")
        self.model, self._options = model, options
        pages = options.kv_tokens // PAGE_TOKENS
        self.memory = PagedMemory(model.config, pages)
        self.pool = PagePool(pages)
        self.stats = EngineStats()
        self.kvist = KvistCache.connect(options.kvist, model.config, self.memory, self.pool) if options.kvist else None
        self._waiting: deque[_Sequence] = deque()
        self._loading: list[_Sequence] = []
        self._running: list[_Sequence] = []  # oldest first; the last is the first to be preempted
        self._answers: list[Answer] = []
        self._last_id = 0

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        if self.kvist:
            self.kvist.close()
            self.kvist = None
        self.memory.close()

    def submit(self, prompt: Sequence[int], answer_tokens: int) -> int:
        """The id of the request. Raises ValueError: no prompt, nothing to answer, more tokens than there can be room for."""
        if not prompt or answer_tokens < 1:
            raise ValueError("a request needs a prompt and room for an answer")
        if any(not 0 <= token < VOCABULARY for token in prompt):
            raise ValueError(f"a token of the prompt isn't in the vocabulary of {VOCABULARY}")
        room = min(self.model.config.context_max, self._options.kv_tokens // PAGE_TOKENS * PAGE_TOKENS)
        if len(prompt) + answer_tokens > room:
            raise ValueError(
                f"prompt and answer have {len(prompt) + answer_tokens} tokens, context_max and kv_tokens allow {room}"
            )
        self._last_id += 1
        sequence = _Sequence(
            tokens=list(prompt),
            tokens_max=len(prompt) + answer_tokens,
            submitted=time.monotonic(),
            answer=Answer(self._last_id, len(prompt)),
            kvist=self.kvist.new_request() if self.kvist else None,
        )
        if sequence.kvist:
            self.kvist.ask(sequence.kvist, sequence.tokens[:-1])  # the answer is there when there is room
        self._waiting.append(sequence)
        return self._last_id

    def abort(self, request: int) -> bool:
        """Ends a request without an answer. False: it isn't there (any more)."""
        for sequences in (self._waiting, self._loading, self._running):
            for sequence in sequences:
                if sequence.answer.id == request:
                    sequences.remove(sequence)
                    if sequence.kvist:
                        self.kvist.abandon(sequence.kvist)
                    self.pool.release(sequence.pages)  # copies under way hold theirs a little longer
                    return True
        return False

    def step(self) -> bool:
        """Does one batch, or waits a little (bounded) for what must come first. False when no request is left."""
        if not (self._waiting or self._loading or self._running):
            return False
        if self.kvist:
            self.kvist.poll()
        self._collect_loads(0.0)
        batch = self._schedule()
        if batch:
            self._compute(batch)
        elif self._loading:
            self._collect_loads(_IDLE_WAIT_S)
        elif self.kvist:
            self._wait_for_kvist()
        return True

    def take_answers(self) -> list[Answer]:
        """Those since the last call, in the order in which they ended."""
        answers, self._answers = self._answers, []
        return answers

    def run(self) -> list[Answer]:
        """Steps until no request is left."""
        while self.step():
            pass
        return self.take_answers()

    def forget_local_pages(self) -> None:
        """Ends stores under way (bounded), then forgets all prefixes in this engine's own pages."""
        if self.kvist:
            self.kvist.flush(5.0)
        self.pool.forget_kept()

    def _wait_for_kvist(self) -> None:
        """Nothing can be computed: the oldest request waits for its lookup, or for pages that copies hold."""
        oldest = self._waiting[0]
        if oldest.may_load and self.kvist.hit_tokens(oldest.kvist, oldest.tokens[:-1], _IDLE_WAIT_S) is None:
            return
        if not self.kvist.flush(_FLUSH_WAIT_S):
            self.kvist.wait_for_pages(_IDLE_WAIT_S)

    def _collect_loads(self, timeout_s: float) -> None:
        """Moves sequences whose load has ended to the running ones. `timeout_s` is for the first of them."""
        for sequence in list(self._loading):
            state = self.kvist.poll_load(sequence.kvist, timeout_s)
            timeout_s = 0.0
            if state == LoadState.PENDING:
                continue
            first, end = sequence.load_at // PAGE_TOKENS, sequence.load_end // PAGE_TOKENS
            if state == LoadState.LOADED:
                if self._options.on_loaded:
                    self._options.on_loaded(self.memory, sequence.pages[first:end])
                if sequence.answer.preemptions == 0:
                    sequence.answer.kvist_tokens = sequence.load_end - sequence.load_at
                sequence.computed = sequence.load_end
                self._name_filled_pages(sequence)
            else:  # compute instead, in other pages: those that the failed load may still touch are held by it
                self.pool.release(sequence.pages[first:])
                del sequence.pages[first:]
                sequence.may_load = False
            sequence.load_at = sequence.load_end = 0
            self._loading.remove(sequence)
            self._running.append(sequence)

    def _schedule(self) -> list[tuple[_Sequence, int]]:
        """What the next batch computes: a token of each answer, and of prompts up to batch_tokens, oldest request first."""
        batch: list[tuple[_Sequence, int]] = []
        budget = self._options.batch_tokens

        def schedule(sequence: _Sequence) -> None:
            nonlocal budget
            answering = sequence.remaining == 1
            tokens = 1 if answering else min(sequence.remaining, budget)
            if tokens > 0 and self._make_room(sequence, sequence.computed + tokens):
                budget -= 0 if answering else tokens
                batch.append((sequence, tokens))

        index = 0
        while index < len(self._running):  # it may lose its last ones meanwhile
            schedule(self._running[index])
            index += 1
        while budget > 0 and self._admit_next():
            if self._running and self._running[-1] not in (sequence for sequence, _ in batch):
                schedule(self._running[-1])  # it has its pages: preempts nobody
        return batch

    def _make_room(self, sequence: _Sequence, tokens: int) -> bool:
        """Pages for the first `tokens` tokens, at the cost of the youngest sequences; False when it was itself youngest."""
        missing = max(_pages_for(tokens) - len(sequence.pages), 0)
        while (pages := self.pool.allocate(missing)) is None:
            if self.kvist and self.kvist.flush(_FLUSH_WAIT_S, only_orphans=True):
                continue  # stores alone held pages: of finished and preempted requests
            youngest = self._running.pop()
            self._preempt(youngest)
            if youngest is sequence:
                return False
        sequence.pages += pages
        return True

    def _preempt(self, sequence: _Sequence) -> None:
        """Takes its pages away. A store under way goes on, and holds its pages until it has ended: resuming is a load then."""
        self.pool.release(sequence.pages)
        sequence.pages = []
        sequence.computed = sequence.named = 0
        sequence.content = NO_CONTENT
        sequence.answer.preemptions += 1
        self.stats.preemptions += 1
        self._waiting.appendleft(sequence)

    def _admit_next(self) -> bool:
        """Admits the oldest waiting request, except those whose KV is about to be here: finds what KV of its tokens there
        is, here or in kvist, and takes pages for all of them. False: nobody to admit, or no room."""
        if len(self._running) + len(self._loading) >= self._options.sequences_max:
            return False
        for sequence in self._waiting:
            if self._is_being_loaded(sequence.tokens):
                continue
            usable = sequence.tokens[:-1]  # the last token is always computed: its logits are wanted
            there = self.kvist.hit_tokens(sequence.kvist, usable) if sequence.kvist and sequence.may_load else 0
            if there is not None:
                break
        else:
            return False

        prefix = self.pool.find_prefix(usable)
        if there > len(prefix.pages) * PAGE_TOKENS:
            # Loads are in whole chunks, and must not write to pages that others use: share only what lies before the first
            # to load.
            chunk = self.kvist.chunk_tokens
            load_at = len(prefix.pages) * PAGE_TOKENS // chunk * chunk
            self.pool.release(prefix.pages)
            prefix = self.pool.find_prefix(usable[:load_at])
        else:
            there = load_at = 0
        pages = self.pool.allocate(_pages_for(len(sequence.tokens)) - len(prefix.pages))
        if pages is None:
            self.pool.release(prefix.pages)
            return False

        sequence.pages = prefix.pages + pages
        sequence.named, sequence.content = len(prefix.pages), prefix.content
        sequence.computed = len(prefix.pages) * PAGE_TOKENS
        if sequence.answer.preemptions == 0:
            sequence.answer.local_tokens = sequence.computed
        self._waiting.remove(sequence)
        if there > 0:
            target = sequence.pages[load_at // PAGE_TOKENS : there // PAGE_TOKENS]
            if self.kvist.start_load(sequence.kvist, load_at // self.kvist.chunk_tokens, target):
                sequence.load_at, sequence.load_end = load_at, there
                self._loading.append(sequence)
                return True
        elif sequence.kvist:
            self.kvist.drop_hit(sequence.kvist)
        self._running.append(sequence)
        return True

    def _is_being_loaded(self, tokens: Sequence[int]) -> bool:
        """Whether a load under way brings a chunk or more of these: awaited, instead of loading the same once for each."""
        for other in self._loading:
            end = other.load_at + self.kvist.chunk_tokens
            if end <= other.load_end and list(tokens[:end]) == other.tokens[:end]:
                return True
        return False

    def _compute(self, batch: list[tuple[_Sequence, int]]) -> None:
        spans = [Span(s.tokens[s.computed : s.computed + count], s.computed, s.pages) for s, count in batch]
        logits = self.model.forward(spans, self.memory.kv)
        self.stats.steps += 1
        for (sequence, count), of_last in zip(batch, logits, strict=True):
            self.stats.tokens_computed += count
            sequence.computed += count
            self._name_filled_pages(sequence)
            if sequence.kvist:
                self.kvist.store_filled(sequence.kvist, sequence.tokens, sequence.computed, sequence.pages)
            if sequence.remaining == 0:
                self._add_token(sequence, of_last)

    def _name_filled_pages(self, sequence: _Sequence) -> None:
        """Lets others find what the sequence has computed or loaded."""
        while (sequence.named + 1) * PAGE_TOKENS <= sequence.computed:
            first = sequence.named * PAGE_TOKENS
            tokens = sequence.tokens[first : first + PAGE_TOKENS]
            sequence.content = self.pool.name(sequence.pages[sequence.named], sequence.content, tokens)
            sequence.named += 1

    def _add_token(self, sequence: _Sequence, logits: Tensor) -> None:
        answer = sequence.answer
        if not answer.tokens:
            answer.time_to_first_token_s = time.monotonic() - sequence.submitted
        answer.tokens.append(int(logits.argmax()))
        sequence.tokens.append(answer.tokens[-1])
        sequence.logits.append(logits)
        if len(sequence.tokens) == sequence.tokens_max:
            answer.logits = torch.stack(sequence.logits)
            self._running.remove(sequence)
            self.pool.release(sequence.pages)  # stores under way hold theirs a little longer
            self._answers.append(answer)
