"""The demonstration: readers of documents, in phases, whose logits must be equal bit for bit.

cold     everything is computed, and stored
warm     the same process, its own pages forgotten: loaded
restart  a new process: loaded
control  a new process that spoils one value of one loaded page: the logits must differ, or the others prove nothing
"""

import argparse
import dataclasses
import enum
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import kvist
import torch

from torch_engine import kv_file
from torch_engine.engine import Answer, Engine, EngineOptions
from torch_engine.kvist_cache import KvistOptions
from torch_engine.memory import PagedMemory
from torch_engine.model import BEGIN_OF_TEXT, Model, ModelConfig

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_NAME_WIDTH = 40
_INSTRUCTIONS = "You answer questions about a text, briefly. You say when it doesn't tell.\n\n"
_QUESTIONS = (  # by reader, then round
    ("What is this text about?", "Who wrote it, and for whom?", "What must its reader do?"),
    ("Which words does it define?", "Which of them matter most?", "What does it leave open?"),
)


class Verdict(enum.IntEnum):
    """How a run ends: its exit status."""

    EQUAL = 0  # all logits are bit for bit those of the reference
    ERROR = 1  # it could not be run; stderr says why
    DIFFERS = 2  # some are not: what the control must end with
    NOTHING_LOADED = 3  # nothing was loaded where there should have been something: the run proves nothing


@dataclasses.dataclass
class Entry:
    """A request of the workload."""

    logits: torch.Tensor  # of the reference
    first_token_ms: dict[str, float]  # time to first token, by phase


# What a run leaves for the next process to compare with: raw logits, not a digest, so that a difference can be looked at.
Record = dict[str, Entry]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """A NaN equals itself, and 0 differs from -0."""
    return a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))


def run_workload(engine: Engine, documents: dict[str, bytes], rounds: int, answer_tokens: int) -> dict[str, Answer]:
    """Two readers of each document ask at once, in rounds, each with all that was said before. Deterministic."""
    talks = {
        f"{name}, reader {reader + 1}": [BEGIN_OF_TEXT, *_INSTRUCTIONS.encode(), *text]
        for name, text in documents.items()
        for reader in range(len(_QUESTIONS))
    }
    answers = {}
    for at in range(rounds):
        asked = {}
        for index, (name, talk) in enumerate(talks.items()):
            talk += f"\n\nQuestion: {_QUESTIONS[index % len(_QUESTIONS)][at]}\nAnswer: ".encode()
            asked[engine.submit(talk, answer_tokens)] = name
        for answer in engine.run():
            talks[asked[answer.id]] += answer.tokens
            answers[f"{asked[answer.id]}, question {at + 1}"] = answer
    return dict(sorted(answers.items()))


class _Corruption:
    """The negative control: spoils one value of the engine's own memory right after a load has filled it."""

    def __init__(self) -> None:
        self.armed = self.done = False

    def visit(self, memory: PagedMemory, pages: Sequence[int]) -> None:
        if self.armed:
            page = pages[len(pages) // 2]
            memory.kv[0, page, 1, 8, 0, 0].neg_()
            self.armed, self.done = False, True
            print(f"corrupted on purpose: the sign of one value of one loaded page (page {page} of the engine)")


def _compare(phase: str, answers: dict[str, Answer], record: Record) -> bool:
    """Adds a phase to the record, whose first is the reference. Prints a line for each answer. Whether all are equal."""
    print(
        f"\n{phase}\n{'request':{_NAME_WIDTH}} {'prompt':>7} {'local':>7} {'kvist':>7} {'TTFT ms':>10}  against the reference"
    )
    all_equal, is_reference = True, not record
    for name, answer in answers.items():
        verdict = "is the reference"
        if is_reference:
            record[name] = Entry(answer.logits, {})
        elif name not in record or not same_bits(record[name].logits, answer.logits):
            verdict, all_equal = "DIFFERS", False
        else:
            verdict = "bit for bit equal"
        first_token_ms = 1e3 * answer.time_to_first_token_s
        if name in record:
            record[name].first_token_ms[phase] = first_token_ms
        print(
            f"{name:{_NAME_WIDTH}} {answer.prompt_tokens:7} {answer.local_tokens:7} {answer.kvist_tokens:7} "
            f"{first_token_ms:10.1f}  {verdict}"
        )
    return all_equal and record.keys() == answers.keys()


def _print_times(record: Record) -> None:
    """Time to first token, a request a row and a phase a column."""
    phases = list(dict.fromkeys(phase for entry in record.values() for phase in entry.first_token_ms))
    print(f"\n{'time to first token, ms':{_NAME_WIDTH}}" + "".join(f" {phase:>10}" for phase in phases))
    for name, entry in record.items():
        print(
            f"{name:{_NAME_WIDTH}}" + "".join(f" {entry.first_token_ms.get(phase, float('nan')):10.1f}" for phase in phases)
        )
    means = (sum(entry.first_token_ms[phase] for entry in record.values()) / len(record) for phase in phases)
    print(f"{'mean':{_NAME_WIDTH}}" + "".join(f" {mean:10.1f}" for mean in means))


def _run_phases(options: argparse.Namespace) -> Verdict:
    documents = {}
    for path in options.documents:
        documents[path.name] = path.read_bytes()[: options.document_bytes]
    record: Record = torch.load(options.logits_compare, weights_only=False) if options.logits_compare else {}
    corruption = _Corruption()
    engine_options = EngineOptions(
        kv_tokens=options.kv_tokens,
        batch_tokens=options.batch_tokens,
        on_loaded=corruption.visit,
        kvist=None if options.without_kvist else KvistOptions(options.socket, options.instance, options.chunk_tokens),
    )
    verdict = Verdict.EQUAL
    with Engine(Model(ModelConfig(seed=options.seed)), engine_options) as engine:
        if engine.kvist and not engine.kvist.wait_connected(5.0):
            print("kvistd is away: everything is computed until it comes")
        for phase in options.phases:
            engine.forget_local_pages()
            corruption.armed = options.corrupt_one_page and phase == options.phases[-1]
            answers = run_workload(engine, documents, options.rounds, options.answer_tokens)
            loaded = any(answer.kvist_tokens for answer in answers.values())
            if engine.kvist and phase != "cold" and not loaded and verdict == Verdict.EQUAL:
                verdict = Verdict.NOTHING_LOADED
            if not _compare(phase, answers, record):
                verdict = Verdict.DIFFERS
        engine.forget_local_pages()  # ends the stores: the next process finds them
        _print_times(record)
        print(f"\n{engine.stats}")
        if engine.kvist:
            print(engine.kvist.stats)
    if options.corrupt_one_page and not corruption.done:
        verdict = Verdict.NOTHING_LOADED
    if options.logits_out:
        torch.save(record, options.logits_out)
    print(f"verdict: {verdict.name}")
    return verdict


def _run_all(arguments: Sequence[str]) -> Verdict:
    """Every phase, each process of its own that needs to be one."""
    with tempfile.TemporaryDirectory() as folder:
        record = f"{folder}/logits"
        runs = (
            (["--phases", "cold,warm", "--logits-out", record], Verdict.EQUAL),
            (["--phases", "restart", "--logits-compare", record, "--logits-out", record], Verdict.EQUAL),
            (["--phases", "control", "--logits-compare", record, "--corrupt-one-page"], Verdict.DIFFERS),
        )
        for more, wanted in runs:
            found = subprocess.run([sys.executable, pathlib.Path(__file__).parent, "demo", *arguments, *more]).returncode
            if found != wanted:
                print(f"verdict of all: {more[1]} ended with status {found}, wanted was {wanted}")
                return Verdict(found) if found in (Verdict.DIFFERS, Verdict.NOTHING_LOADED) else Verdict.ERROR
    print("verdict of all: computed and loaded are bit for bit equal, and a spoiled page is noticed")
    return Verdict.EQUAL


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="torch_engine", description="A small LLM inference engine that keeps its KV cache in kvistd."
    )
    commands = parser.add_subparsers(required=True)
    demo = commands.add_parser(
        "demo",
        help="questions about documents: time to first token, and whether the logits are equal bit for bit",
        epilog="Exit status: 0 all logits equal the reference bit for bit; 1 could not run; 2 some differ (as they must "
        "with --corrupt-one-page); 3 nothing was loaded from kvist where something should have been.",
    )
    default = [path for name in ("README.md", "CONTRIBUTING.md", "LICENSE") if (path := _CHECKOUT / name).is_file()]
    demo.add_argument(
        "--socket", help="kvistd's engine socket; default $KVIST_SOCKET, else this user's, else /run/kvist/engine.sock"
    )
    demo.add_argument("--instance", default="torch_engine", help="name of this engine for kvistd")
    demo.add_argument("--without-kvist", action="store_true", help="keep to itself; only with --phases")
    demo.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    demo.add_argument(
        "--documents", type=pathlib.Path, nargs="+", default=default, metavar="FILE", help="texts to read; a byte is a token"
    )
    demo.add_argument("--document-bytes", type=int, default=2000, help="a longer one is cut")
    demo.add_argument("--rounds", type=int, choices=(1, 2, 3), default=2, help="questions in a conversation")
    demo.add_argument("--answer-tokens", type=int, default=8)
    demo.add_argument("--kv-tokens", type=int, default=16384, help="tokens for which there is KV memory")
    demo.add_argument("--batch-tokens", type=int, default=512, help="tokens of prompts in one step")
    demo.add_argument("--chunk-tokens", type=int, default=0, help="tokens of a chunk; 0: kvist's default")
    demo.add_argument("--seed", type=int, default=1, help="of the weights")
    demo.add_argument("--threads", type=int, default=1, help="torch's; bits are equal between processes that have as many")
    demo.add_argument(
        "--phases",
        type=lambda text: text.split(","),
        help="names, each the whole workload after the engine has forgotten its pages, in this process; all but cold must load "
        "something. Without: cold, warm, restart and control, in three processes",
    )
    demo.add_argument("--logits-out", type=pathlib.Path, help="file for the raw logits and times to first token")
    demo.add_argument("--logits-compare", type=pathlib.Path, help="compare with such a file instead of with the first phase")
    demo.add_argument(
        "--corrupt-one-page", action="store_true", help="spoil one loaded page in the last phase: the status must be 2"
    )
    demo.set_defaults(run=lambda options: _demo(options, demo, arguments))
    kv_file.add_to(commands, default)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except (kvist.KvistError, OSError, ValueError) as error:
        print(f"torch_engine: {error}", file=sys.stderr)
        return Verdict.ERROR


def _demo(options: argparse.Namespace, demo: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    if options.device == "cuda":
        demo.error(
            "--device cuda comes with kvist's CUDA copy engine; kvistd copies pages in shared memory only so far: "
            "use --device cpu"
        )
    if options.phases is None:
        if options.without_kvist or options.logits_out or options.logits_compare or options.corrupt_one_page:
            demo.error("--without-kvist, --logits-out, --logits-compare and --corrupt-one-page want --phases")
        return _run_all(arguments[1:])
    torch.set_num_threads(options.threads)
    return _run_phases(options)
