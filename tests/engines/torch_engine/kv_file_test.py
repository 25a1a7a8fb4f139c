"""KV in a file, as people write it: a process of its own."""

import os
import subprocess
import sys

import torch
from kvist_daemon import REPO
from small_model import random_tokens, small_model
from torch_engine.kv_file import kv_of
from torch_engine.memory import PagedMemory
from torch_engine.model import PAGE_TOKENS, Span


def run(*arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, REPO / "examples/torch_engine", "kv", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)


def test_kv_is_that_of_the_pages_token_by_token():
    tokens = random_tokens(3 * PAGE_TOKENS, 1)
    memory = PagedMemory(small_model().config, 8)
    small_model().forward([Span(tokens, 0, [5, 0, 7])], memory.kv)
    memory.close()
    found = kv_of(small_model(), tokens)
    for token in range(len(tokens)):
        page = [5, 0, 7][token // PAGE_TOKENS]
        wanted = memory.kv[:, page, :, token % PAGE_TOKENS]
        assert torch.equal(found[:, :, token].view(torch.int16), wanted.view(torch.int16))


def test_values_of_the_first_layer_are_the_tokens_alone():
    tokens = random_tokens(4 * PAGE_TOKENS, 2)
    tokens[40] = tokens[3]
    found = kv_of(small_model(), tokens)
    assert torch.equal(found[0, 1, 40].view(torch.int16), found[0, 1, 3].view(torch.int16))
    assert not torch.equal(found[1, 1, 40].view(torch.int16), found[1, 1, 3].view(torch.int16))
    assert not torch.equal(found[0, 0, 40].view(torch.int16), found[0, 0, 3].view(torch.int16))


def test_a_file_has_what_it_says(tmp_path):
    done = run(tmp_path / "kv", "--tokens", "64", "--layers", "2", "--head-dim", "16")
    assert done.returncode == 0, done.stderr
    assert "--layers 2 --tokens 64 --heads 4 --head-dim 16" in done.stdout
    assert (tmp_path / "kv").stat().st_size == 2 * 2 * 64 * 4 * 16 * 2


def test_refuses_tokens_that_fill_no_pages_or_aren_t_there(tmp_path):
    for tokens in ("0", "100", "-16", "100000000"):
        done = run(tmp_path / "kv", "--tokens", tokens)
        assert done.returncode == 1
        assert "--tokens is" in done.stderr
