"""A vLLM engine of a test: llm_child.py in a process of its own."""

import json
import os
import pathlib
import select
import subprocess
import sys

import settings

HERE = pathlib.Path(__file__).parent
CHUNK = 64
BLOCK = 32

# glibc gives freed memory back and faults it in again: 7,000 to 17,000 pages a turn of the throughput test, by the luck of each process's heap, which
# set two engines without kvist apart by up to 9 %. Kept, it is under 10 (2026-11-28). vLLM's guide for CPUs has tcmalloc do so.
_KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}


class Llm:
    """A context manager. `order` waits for the answer; `begin` and `answer` are its halves."""

    def __init__(
        self, model: str, transfer: dict | None, log: pathlib.Path, *, in_process: bool = True, **arguments
    ) -> None:
        arguments = (
            dict(
                model=model,
                load_format="auto",
                skip_tokenizer_init=True,
                enforce_eager=True,
                dtype="float32",
                max_model_len=2048,
                max_num_batched_tokens=2048,
                max_num_seqs=16,
                block_size=BLOCK,
                generation_config="vllm",
                seed=0,
            )
            | arguments
        )
        if transfer is not None:
            arguments["kv_transfer_config"] = transfer
        answers, theirs = os.pipe()
        self.log = log
        with open(log, "ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "llm_child.py"), str(theirs), json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                pass_fds=[theirs],
                env={**os.environ, **_KEEP_FREED_MEMORY, "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_process else "1"},
            )
        os.close(theirs)
        self._answers = os.fdopen(answers)
        assert self.answer(600) == "ready"

    def begin(self, do: str, **how) -> None:
        self._process.stdin.write(json.dumps({"do": do, **how}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, limit_s: float = 300):
        ready, _, _ = select.select([self._answers], [], [], limit_s)
        line = self._answers.readline() if ready else ""
        if not line:
            raise AssertionError(f"the engine doesn't answer; it said: {self.log.read_text()[-3000:]}")
        return json.loads(line)

    def order(self, do: str, **how):
        self.begin(do, **how)
        return self.answer()

    def generate(self, prompts: list[list[int]], max_tokens: int = 8) -> list[dict]:
        return self.order("generate", prompts=prompts, max_tokens=max_tokens)

    def one_by_one(self, prompts: list[list[int]], max_tokens: int = 8) -> list[dict]:
        """Each alone in the batch: what is in it can't move another's last bits."""
        return [self.generate([prompt], max_tokens)[0] for prompt in prompts]

    @property
    def pid(self) -> int:
        return self._process.pid

    def shares_pages(self) -> bool:
        """Whether kvistd can map the engine's pages (kvist.shared), where the engine is in this one process."""
        return "kvist-pages" in pathlib.Path(f"/proc/{self.pid}/maps").read_text()

    def reset(self) -> None:
        assert self.order("reset")["done"]

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()

    def __enter__(self) -> "Llm":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def transfer(socket: str, chunk: int = CHUNK) -> dict:
    return settings.transfer_config(socket, chunk, lookup_timeout_s=2.0)
