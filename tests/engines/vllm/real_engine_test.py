"""vLLM itself, on the CPU, with random weights: what it says with kvist is what it says without, whatever happens to kvistd.

"Equal": the same tokens, and logprobs that differ by no more than vLLM's do from its own when its own prefix cache hits.
"""

import json
import os
import pathlib
import random
import statistics
import subprocess
import time

import checkpoint
import pytest
from kvist_daemon import Daemon, binary
from llm_process import BLOCK, CHUNK, Llm, transfer

pytestmark = pytest.mark.alone

LENGTHS = (64, 100, 256, 333, 700, 1100)


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 512) for _ in range(length)]


PROMPTS = [prompt(i, length) for i, length in enumerate(LENGTHS)]


def distance(one: list[dict], other: list[dict]) -> float:
    """The largest difference of a logprob of a token that both name; infinity where tokens differ."""
    largest = 0.0
    for a, b in zip(one, other, strict=True):
        if a["tokens"] != b["tokens"]:
            return float("inf")
        for at, bt in zip(a["logprobs"], b["logprobs"], strict=True):
            largest = max([largest, *(abs(at[t] - bt[t]) for t in at.keys() & bt.keys())])
    return largest


def cached(answers: list[dict]) -> list[int]:
    return [a["cached"] for a in answers]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoint.write(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def kvistd():
    # Touched before it is used, as a kvistd does by default: what is timed here is not zeroing.
    with Daemon(pool__bytes="256MiB", pool__touch_threads="1") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def plain(model, log):
    """vLLM without kvist."""
    with Llm(model, None, log / "plain.log") as llm:
        yield llm


@pytest.fixture(scope="module")
def truth(plain):
    """(what vLLM says without kvist, how far it is from itself with its own prefix cache)."""
    cold = plain.one_by_one(PROMPTS)
    again = plain.one_by_one(PROMPTS)
    assert sum(cached(again)) > sum(LENGTHS) * 0.8
    plain.reset()
    self_distance = distance(cold, again)
    print(f"vLLM differs from itself by up to {self_distance:.2e} in logprobs when its own prefix cache hits")
    return cold, max(self_distance, 1e-6)


@pytest.fixture(scope="module")
def engine(model, log, kvistd):
    """vLLM with kvist; tests that come first find it empty."""
    with Llm(model, transfer(kvistd.socket), log / "kvist.log") as llm:
        yield llm


def settle(engine: Llm, kvistd: Daemon) -> None:
    """vLLM has nothing left to do, and what it stored is there: a store goes on after the request that filled its blocks has ended, for
    long where others compute."""
    assert engine.order("settle")
    kvistd.wait_idle()


def hits(lengths=LENGTHS) -> list[int]:
    """Tokens of whole chunks; of a prompt that is all chunks the last token is computed again."""
    return [min(length // CHUNK * CHUNK, length - 1) for length in lengths]


def test_empty_and_warm(truth, engine, kvistd):
    cold, bound = truth
    assert engine.shares_pages()
    first = engine.one_by_one(PROMPTS)
    assert cached(first) == [0] * len(PROMPTS)
    assert distance(first, cold) <= bound
    settle(engine, kvistd)
    engine.reset()
    warm = engine.one_by_one(PROMPTS)
    print(f"warm: {cached(warm)} of {LENGTHS} tokens from kvist, logprobs differ by up to {distance(warm, cold):.2e}")
    assert cached(warm) == pytest.approx(hits(), abs=1)
    assert distance(warm, cold) <= 2 * bound
    kvistd.wait_idle()


def test_prefixes_of_others(truth, engine, plain):
    """Prompts that share a prefix with what is there, and go on differently."""
    prompts = [PROMPTS[4][:400] + prompt(50, 77), PROMPTS[5][:1000] + prompt(51, 10), PROMPTS[5][:1100] + prompt(52, 300)]
    plain.reset()
    wanted = plain.one_by_one(prompts)
    engine.reset()
    got = engine.one_by_one(prompts)
    assert cached(got) == [384, 960, 1088]
    assert distance(got, wanted) <= 2 * truth[1]


def test_batch(truth, engine, plain, kvistd):
    """All at once: loads beside computing requests."""
    plain.reset()
    wanted = plain.generate(PROMPTS, 24)
    settle(engine, kvistd)
    engine.reset()
    got = engine.generate(PROMPTS, 24)
    assert sum(cached(got)) > 0
    assert distance(got, wanted) <= 10 * truth[1] + 1e-4  # other batches: other sums


def test_corrupted_page_is_seen(truth, engine, plain, kvistd):
    """The negative control: one wrong page of a chunk, wherever it is, moves the logprobs by far more than the bound."""
    moved = []
    for page in (1, 3, 7):
        tokens = prompt(100 + page, 8 * BLOCK + 5)
        plain.reset()
        wanted = plain.one_by_one([tokens])
        engine.order("corrupt", page=page)
        assert distance(engine.one_by_one([tokens]), wanted) <= 2 * truth[1]
        engine.order("corrupt", page=-1)
        settle(engine, kvistd)
        engine.reset()
        got = engine.one_by_one([tokens])
        assert cached(got)[0] == 8 * BLOCK
        moved.append(distance(got, wanted))
    print(f"a wrong page moves logprobs by {moved}; the bound is {2 * truth[1]:.2e}")
    assert min(moved) > 100 * truth[1]


def test_after_daemon_restart(truth, engine, kvistd):
    cold, bound = truth
    settle(engine, kvistd)
    kvistd.kill()
    engine.reset()
    away = engine.one_by_one(PROMPTS)
    assert cached(away) == [0] * len(PROMPTS)
    assert distance(away, cold) <= 2 * bound
    kvistd.start()
    kvistd.wait_status(lambda status: status["sessions"] == 2)
    engine.reset()
    again = engine.one_by_one(PROMPTS)
    assert distance(again, cold) <= 2 * bound
    settle(engine, kvistd)
    engine.reset()
    warm = engine.one_by_one(PROMPTS)
    assert sum(cached(warm)) > 0
    assert distance(warm, cold) <= 2 * bound


def test_daemon_killed_in_the_middle(truth, engine, plain, kvistd):
    """Long outputs, and prompts that are loaded, while kvistd dies and comes back again and again."""
    prompts = [p + prompt(200 + i, 30) for i, p in enumerate(PROMPTS)]
    plain.reset()
    wanted = plain.generate(prompts, 150)
    for turn in range(3):
        settle(engine, kvistd)
        engine.reset()
        engine.begin("generate", prompts=prompts, max_tokens=150)
        time.sleep(0.05 + 0.15 * turn)
        kvistd.kill()
        kvistd.start()
        got = engine.answer()
        assert [g["tokens"] for g in got] == [w["tokens"] for w in wanted] or distance(got, wanted) < 1e-3
        assert distance(got, wanted) <= 10 * truth[1] + 1e-4


def test_after_engine_restart(truth, engine, model, log, kvistd):
    """A new process finds what the old one left. The last test that uses `engine`."""
    cold, bound = truth
    kvistd.wait_status(lambda status: status["sessions"] == 2)
    engine.reset()
    engine.one_by_one(PROMPTS)
    settle(engine, kvistd)
    engine.close()
    kvistd.wait_idle(sessions=0)
    with Llm(model, transfer(kvistd.socket), log / "restarted.log") as restarted:
        warm = restarted.one_by_one(PROMPTS)
        assert cached(warm) == pytest.approx(hits(), abs=1)
        assert distance(warm, cold) <= 2 * bound
        speed(restarted, kvistd)


def copy_rate() -> float:
    """Bytes a second of `kvist-bench copy` for loads of pages of this model's size."""
    done = subprocess.run(
        [binary("kvist-bench"), "copy", "--json", "--seconds", "3"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    cases = {case["case"]: case["value"] for case in json.loads(done.stdout)["cases"]}
    return 1e9 * cases["load 32 KiB pages, one chunk"]


def speed(engine: Llm, kvistd) -> None:
    """Time to first token of a prompt that kvist has, beside one that vLLM's own cache has."""
    layers, kv_bytes = checkpoint.CONFIG["num_hidden_layers"], 2 * 2 * 64 * 4
    rate = copy_rate()
    step = statistics.median(engine.order("empty_steps", count=100))
    print(f"\nempty engine step {1e3 * step:.2f} ms, kvist-bench copy {rate / 1e9:.1f} GB/s")
    ratios = []
    engine.order("watch")
    for length in (512, 1024, 1984):
        tokens = prompt(300 + length, length + 1)
        own, warm, cold, parts = [], [], [], []
        for turn in range(7):
            tokens[0] = 3 + turn  # another prompt each turn: nowhere yet
            cold.append(engine.generate([tokens], 1)[0]["seconds"])
            settle(engine, kvistd)
            (answer,) = engine.generate([tokens], 1)
            assert answer["cached"] == length // BLOCK * BLOCK
            own.append(answer["seconds"])
            engine.reset()
            engine.order("took")
            (answer,) = engine.generate([tokens], 1)
            assert answer["cached"] == length // CHUNK * CHUNK
            warm.append(answer["seconds"])
            parts.append(engine.order("took"))
        cold, own, warm = (1e3 * statistics.median(times) for times in (cold, own, warm))
        copying = 1e3 * layers * kv_bytes * length / rate
        wanted = own + 1e3 * step + copying
        ratios.append(warm / wanted)
        print(f"{length:5} tokens to the first one: computed {cold:.1f} ms, from kvist {warm:.2f}, from vLLM's own cache {own:.2f} + step "
              f"{1e3 * step:.2f} + copy {copying:.2f}: {warm / wanted:.2f} times that (wanted: 1.2); of it the lookup took "
              f"{1e3 * statistics.median(p['lookup'][0] for p in parts):.2f} and the load {1e3 * statistics.median(p['load'][0] for p in parts):.2f}, "
              f"in {statistics.median(p['steps'] for p in parts):.0f} steps")  # fmt: skip
    assert min(ratios) < 3, "far slower than the engine's own cache"


def test_two_ranks(truth, model, log, kvistd):
    """Tensor parallel, the engine and its workers in processes of their own: each gets its half back."""
    with Llm(model, transfer(kvistd.socket), log / "two_ranks.log", in_process=False, tensor_parallel_size=2) as engine:
        cold = engine.one_by_one(PROMPTS)
        assert cached(cold) == [0] * len(PROMPTS)
        assert distance(cold, truth[0]) < 1e-3  # other sums
        kvistd.wait_idle()
        engine.reset()
        warm = engine.one_by_one(PROMPTS)
        assert cached(warm) == pytest.approx(hits(), abs=1)
        assert distance(warm, cold) <= 2 * truth[1]


def processor_seconds(*processes: int) -> float:
    """Of all their threads, so far."""
    ticks = 0
    for pid in processes:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_throughput_when_all_misses(plain, model, log, kvistd):
    """Prompts that nobody has seen, with kvist and without, in turns on one machine, and a second engine without kvist: how far two that are the
    same are apart. What others on the machine leave of it moves the time that a turn takes; what it takes of processors, kvistd's among it, they
    move less."""
    with (
        Llm(model, transfer(kvistd.socket), log / "throughput.log") as engine,
        Llm(model, None, log / "control.log") as control,
    ):
        engines = {"kvist": (engine, kvistd.pid), "without": (plain,), "control": (control,)}
        took: dict[str, list[float]] = {name: [] for name in engines}
        used = dict.fromkeys(engines, 0.0)
        for turn in range(-2, 24):
            prompts = [prompt(10_000 + 100 * (turn + 2) + i, 300) for i in range(12)]
            for name in sorted(engines, key=lambda name: (list(engines).index(name) + turn) % len(engines)):
                llm, *others = engines[name]
                before = processor_seconds(llm.pid, *others)
                answers = llm.generate(prompts, 16)
                assert sum(cached(answers)) == 0
                if turn >= 0:
                    took[name].append(answers[0]["seconds"])
                    used[name] += processor_seconds(llm.pid, *others) - before

        def of_without(name: str) -> tuple[list[float], float]:
            return [without / it for without, it in zip(took["without"], took[name])], used["without"] / used[name]

        (ratios, processors), (same, same_processors) = of_without("kvist"), of_without("control")
        print(f"\nall-miss throughput with kvist: {statistics.median(ratios):.3f} of vLLM without (wanted: 0.97; each turn: "
              f"{', '.join(f'{r:.2f}' for r in ratios)}), of processor time {processors:.3f}; another vLLM without: "
              f"{statistics.median(same):.3f} and {same_processors:.3f}")  # fmt: skip
        assert statistics.median(ratios) > 0.7
