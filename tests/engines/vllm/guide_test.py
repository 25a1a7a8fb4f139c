"""The commands of examples/vllm/README.md: vLLM's own server with the configuration that stands there."""

import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import checkpoint
import pytest
from scenarios import prompt

pytestmark = pytest.mark.real

GUIDE = pathlib.Path(__file__).resolve().parents[3] / "examples/vllm/README.md"
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture
def server(daemon, tmp_path):
    """`vllm serve` as the guide has it, with a model that is here; its address."""
    (wanted,) = re.findall(r"^vllm serve MODEL --kv-transfer-config '(.*)'$", GUIDE.read_text(), re.MULTILINE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What `vllm serve` starts; the command itself looks for a distribution named vllm, and finds none with vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", checkpoint.write(tmp_path / "model")]
    command += ["--kv-transfer-config", wanted]
    command += [
        "--served-model-name",
        "model",
        "--skip-tokenizer-init",
        "--enforce-eager",
        "--dtype",
        "float32",
        "--max-model-len",
        "2048",
    ]
    command += ["--block-size", "32", "--host", "127.0.0.1", "--port", str(port)]
    log = tmp_path / "serve.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=out,
            env={**os.environ, **ENVIRONMENT, "KVIST_SOCKET": daemon.socket},
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 300
        while True:
            assert process.poll() is None and time.monotonic() < end, (
                f"vllm serve didn't get ready: {log.read_text()[-3000:]}"
            )
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except (urllib.error.URLError, http.client.HTTPException, OSError):
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def post(url: str, body: dict | None = None) -> dict:
    data = json.dumps(body).encode() if body is not None else b""
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read()
    return json.loads(text) if text.strip() else {}


def metric(address: str, name: str) -> float:
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    values = re.findall(rf"^{name}(?:_total)?{{[^}}]*}} (\S+)$", text, re.MULTILINE)
    assert values, f"no {name} in {re.findall('^vllm:kvist[^ ]*', text, re.MULTILINE)}"
    return sum(map(float, values))


def test_serve(server, daemon):
    asked = {
        "model": "model", "prompt": prompt(1, 1500), "max_tokens": 4, "temperature": 0, "return_token_ids": True, "detokenize": False,
        "ignore_eos": True,
    }  # fmt: skip
    first = post(f"{server}/v1/completions", asked)["choices"][0]["token_ids"]
    daemon.wait_status(lambda status: status["chunks_stored"] == 5 and status["ops"] == 0)
    post(f"{server}/reset_prefix_cache")
    second = post(f"{server}/v1/completions", asked)["choices"][0]["token_ids"]
    assert first == second and len(first) == 4
    assert daemon.status()["chunks_loaded"] == 5
    assert metric(server, "vllm:external_prefix_cache_hits") == 1280
    assert metric(server, "vllm:kvist_away") == 0
