"""The demonstration as people run it: processes of its own."""

import os
import re
import subprocess
import sys

import pytest
from kvist_daemon import REPO, Daemon
from torch_engine.demo import Verdict

SMALL = ["--document-bytes", "300", "--rounds", "2", "--answer-tokens", "3", "--chunk-tokens", "64"]


def demo(*arguments):
    """Exit status, stdout, stderr."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, REPO / "examples/torch_engine", "demo", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    return done.returncode, done.stdout, done.stderr


def test_all_phases(daemon):
    status, said, errors = demo("--socket", daemon.socket, *SMALL)
    assert (status, errors) == (Verdict.EQUAL, "")
    assert said.count("bit for bit equal") > 3 * 6
    assert "DIFFERS" in said
    assert re.search(r"time to first token, ms +cold +warm +restart +control\n", said)
    assert len(re.findall(r"^LICENSE, reader 2, question 2( +[\d.]+){4}$", said, re.MULTILINE)) == 1
    assert said.rstrip().endswith("verdict of all: computed and loaded are bit for bit equal, and a spoiled page is noticed")


def test_phases_one_by_one(daemon, tmp_path):
    record, common = tmp_path / "logits", ["--socket", daemon.socket, *SMALL]
    assert demo(*common, "--phases", "cold", "--logits-out", record)[0] == Verdict.EQUAL
    assert demo(*common, "--phases", "control", "--logits-compare", record, "--corrupt-one-page")[0] == Verdict.DIFFERS
    assert demo(*common, "--phases", "restart", "--logits-compare", record, "--seed", "2")[0] == Verdict.DIFFERS
    daemon.ctl("clear", "--yes")
    assert demo(*common, "--phases", "restart", "--logits-compare", record)[0] == Verdict.NOTHING_LOADED


def test_without_a_daemon_everything_is_computed(tmp_path):
    with Daemon(started=False) as daemon:
        status, said, _ = demo("--socket", daemon.socket, *SMALL, "--rounds", "1", "--phases", "cold")
    assert status == Verdict.EQUAL
    assert "kvistd is away" in said
    assert demo("--without-kvist", *SMALL, "--rounds", "1", "--phases", "cold,warm")[0] == Verdict.EQUAL


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--device", "cuda"], "--device cuda comes with kvist's CUDA copy engine"),
        (["--without-kvist"], "want --phases"),
        (["--documents", "/nowhere", "--phases", "cold"], "No such file"),
        (["--without-kvist", "--kv-tokens", "64", "--phases", "cold"], "context_max and kv_tokens allow 64"),
    ],
)
def test_refuses_with_the_reason(arguments, why):
    status, _, errors = demo(*arguments)
    assert status != 0
    assert why in errors
    assert "Traceback" not in errors
