"""KV of this engine in a file, for measuring codecs: raw bf16, [layers][K or V][tokens][kv_heads][head_dim]."""

import argparse
import pathlib
from collections.abc import Sequence

import torch

from torch_engine.memory import PagedMemory
from torch_engine.model import BEGIN_OF_TEXT, PAGE_TOKENS, Model, ModelConfig, Span


def add_to(commands: argparse._SubParsersAction, documents: Sequence[pathlib.Path]) -> None:
    command = commands.add_parser("kv", help="computes a text's KV and writes it to a file, for kvist-bench codec --kv")
    command.add_argument("file", type=pathlib.Path, help="to write")
    command.add_argument("--documents", type=pathlib.Path, nargs="+", default=documents, metavar="FILE", help="one text")
    command.add_argument("--tokens", type=int, default=2048, help=f"bytes of it; a multiple of {PAGE_TOKENS}")
    command.add_argument("--seed", type=int, default=1, help="of the weights")
    command.add_argument("--layers", type=int, default=ModelConfig.layers)
    command.add_argument("--head-dim", type=int, default=ModelConfig.head_dim)
    command.set_defaults(run=_run)


def kv_of(model: Model, tokens: Sequence[int]) -> torch.Tensor:
    """[layers, K and V, tokens, kv_heads, head_dim]; whole pages of tokens only."""
    pages = len(tokens) // PAGE_TOKENS
    memory = PagedMemory(model.config, pages)
    model.forward([Span(tokens[: pages * PAGE_TOKENS], 0, range(pages))], memory.kv)
    memory.close()
    return memory.kv.transpose(1, 2).flatten(2, 3)


def _run(options: argparse.Namespace) -> int:
    text = b"\n".join(path.read_bytes() for path in options.documents)
    tokens = [BEGIN_OF_TEXT, *text][: options.tokens]
    if options.tokens < PAGE_TOKENS or options.tokens % PAGE_TOKENS != 0 or len(tokens) < options.tokens:
        raise ValueError(f"--tokens is {options.tokens}: must be a multiple of {PAGE_TOKENS}; the text has {len(text) + 1}")
    config = ModelConfig(layers=options.layers, head_dim=options.head_dim, seed=options.seed, context_max=options.tokens)
    kv = kv_of(Model(config), tokens)
    options.file.write_bytes(kv.contiguous().view(torch.int16).numpy().tobytes())
    print(
        f"{options.file}: KV of {options.tokens} tokens. Now: kvist-bench codec --kv {options.file} --layers {config.layers} "
        f"--tokens {options.tokens} --heads {config.kv_heads} --head-dim {config.head_dim}"
    )
    return 0
