"""vLLM's LLM in a process of its own: orders are JSON lines on stdin, answers JSON lines on the file descriptor that argv names.

argv: answers' fd, the LLM's arguments as JSON. Orders:
    {"do": "generate", "prompts": [[token]], "max_tokens": n}   -> [{"tokens", "logprobs": [{token: logprob}], "cached", "seconds"}], all at once
    {"do": "reset"}                                             -> whether vLLM forgot its prefix cache
    {"do": "empty_steps", "count": n}                           -> seconds of each engine step that has nothing to schedule
    {"do": "corrupt", "page": p}                                -> from here on page p of what is stored is another page's (p < 0: no more)
    {"do": "lose_states", "on": true}                           -> from here on what is stored of a recurrent state is another block
    {"do": "watch"}, then {"do": "took"}                        -> seconds of each lookup and load, and engine steps, since the last
    {"do": "settle"}                                            -> whether the engine has nothing left to do
"""

import ctypes
import json
import os
import sys
import time
from array import array

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

ORDERS = {}


def order(function):
    ORDERS[function.__name__] = function
    return function


@order
def generate(llm, prompts, max_tokens):
    from vllm import SamplingParams

    begin = time.perf_counter()
    outputs = llm.generate(
        [{"prompt_token_ids": p} for p in prompts],
        SamplingParams(max_tokens=max_tokens, temperature=0, detokenize=False, logprobs=10, ignore_eos=True),
        use_tqdm=False,
    )
    seconds = time.perf_counter() - begin
    return [
        {
            "tokens": list(o.outputs[0].token_ids),
            "logprobs": [{str(t): v.logprob for t, v in step.items()} for step in o.outputs[0].logprobs],
            "cached": o.num_cached_tokens,
            "seconds": seconds,
        }
        for o in outputs
    ]


@order
def reset(llm):
    """Steps first until what was left to do without a request is done, as a server's loop does by itself."""
    end = time.monotonic() + 10
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)  # none: it is in another process, and steps by itself
    at_once = llm.reset_prefix_cache()
    done = at_once
    while not done and time.monotonic() < end:
        core.step_fn() if core is not None else time.sleep(0.01)
        done = llm.reset_prefix_cache()
    return {"done": bool(done), "at_once": bool(at_once)}


@order
def settle(llm):
    core = llm.llm_engine.engine_core.engine_core
    end = time.monotonic() + 10
    while core.scheduler.has_requests() and time.monotonic() < end:
        core.step_fn()
    return not core.scheduler.has_requests()


@order
def empty_steps(llm, count):
    core = llm.llm_engine.engine_core.engine_core
    took = []
    for _ in range(count):
        begin = time.perf_counter()
        output = core.scheduler.schedule()
        result = core.model_executor.execute_model(output)
        core.scheduler.update_from_output(output, result)
        took.append(time.perf_counter() - begin)
    return took


_took = {"lookup": [], "load": [], "steps": 0}


@order
def watch(llm):
    """From here on `took` knows seconds from the begin of each lookup and load to its answer, and how many steps the engine made."""
    import kvist

    begun = {}

    def begins(kind, real):
        def call(self, *arguments, **how):
            begin = time.perf_counter()
            op = real(self, *arguments, **how)
            begun[id(self), op] = kind, begin
            return op

        return call

    def ends(real, over):
        def call(self, op, *arguments):
            result = real(self, op, *arguments)
            if over(result) and (id(self), op) in begun:
                kind, begin = begun.pop((id(self), op))
                _took[kind].append(time.perf_counter() - begin)
            return result

        return call

    client = kvist.Client
    client.lookup_start = begins("lookup", client.lookup_start)
    client.load = begins("load", client.load)
    client.lookup_result = ends(client.lookup_result, lambda hit: hit is not None)
    client.poll = ends(client.poll, lambda result: result.status != kvist.Status.PENDING)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    schedule = scheduler.schedule

    def counted(*arguments, **how):
        _took["steps"] += 1
        return schedule(*arguments, **how)

    scheduler.schedule = counted
    return True


@order
def took(llm):
    answer = {"lookup": list(_took["lookup"]), "load": list(_took["load"]), "steps": _took["steps"]}
    _took.update(lookup=[], load=[], steps=0)
    return answer


@order
def corrupt(llm, page):
    import kvist

    real = getattr(kvist.Client.store, "real", kvist.Client.store)

    def store(self, keys, pages, **how):
        if page < len(pages):
            pages[page] = pages[page - 1]
        return real(self, keys, pages, **how)

    store.real = real
    kvist.Client.store = store if page >= 0 else real
    return True


@order
def lose_states(llm, on):
    import kvist

    real = getattr(kvist.Client.store, "real", kvist.Client.store)
    recurrent = llm.llm_engine.engine_core.engine_core.scheduler.connector._scheduler._tables.recurrent

    def store(self, keys, pages, **how):
        return real(self, keys, array("I", [0]) if how["group"] in recurrent else pages, **how)

    store.real = real
    kvist.Client.store = store if on else real
    return True


def _copy_states_without_triton() -> None:
    """A recurrent layer's state goes from one block to the next by a kernel in Triton, also on CPUs, for which there is none."""
    from vllm.triton_utils import HAS_TRITON
    from vllm.v1.worker import mamba_utils

    def copy(sources, destinations, sizes):
        for source, destination, size in zip(sources.tolist(), destinations.tolist(), sizes.tolist(), strict=True):
            ctypes.memmove(destination, source, size)

    if not HAS_TRITON:
        mamba_utils.batch_memcpy = copy


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w")
    from vllm import LLM

    _copy_states_without_triton()
    llm = LLM(**json.loads(sys.argv[2]))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        print(json.dumps(ORDERS[wanted.pop("do")](llm, **wanted)), file=answers, flush=True)


if __name__ == "__main__":
    main()
