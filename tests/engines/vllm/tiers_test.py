"""vLLM over kvistd's real lower tiers: KV that lies on its SSD only, or in a store that nodes share; every byte that attention reads is looked at."""

import pytest
from histories import Faults, History, seeds
from kvist_daemon import Daemon
from scenarios import prompt
from settings import STATES, Shape

SHAPES = {
    "plain": Shape(blocks=64),
    "windows": Shape(blocks=64, windows=(0, 64)),
    "states": Shape(blocks=64, windows=(0, STATES), chunk=16, retention=0),
}
# The gate would leave to vLLM what it computes sooner, which here is all.
ON_SSD = {"ssd__enabled": "true", "ssd__capacity": "64MiB", "ssd__gate": "false", "pool__bytes": "8MiB"}
PATIENT = {"lookup_timeout_s": 5.0, "slow_timeout_s": 10.0}
PROMPTS = [prompt(number, 200) for number in range(5)]
END = prompt(50, 10)


def store_all(engine, ledger) -> None:
    for tokens in PROMPTS:
        engine.prefill(tokens, max_tokens=1)
        engine.settle(ledger)  # before their blocks are other prompts'
    engine.reset()
    engine.loaded_tokens()


def all_are_loaded(engine, ledger) -> None:
    for tokens in PROMPTS:
        engine.prefill(tokens + END, max_tokens=1)
        assert engine.loaded_tokens() == 192
    engine.settle(ledger)


@pytest.mark.parametrize("shape", SHAPES)
def test_from_the_ssd(shape, ledger, start):
    """A kvistd that was stopped and started has it on its disk only."""
    with Daemon(**ON_SSD) as daemon:
        engine = start(daemon, SHAPES[shape], **PATIENT)
        store_all(engine, ledger)
        daemon.stop()
        daemon.start()
        daemon.wait_status(lambda status: status["sessions"] == 2 and not status["ssd"]["recovering"])
        all_are_loaded(engine, ledger)
        assert daemon.ctl("ssd")["chunks_read"] >= 5 * 192 // SHAPES[shape].chunk


@pytest.mark.parametrize("shape", SHAPES)
def test_from_a_shared_store(shape, ledger, start, tmp_path):
    """Another node's engine has stored it, in a directory that both reach."""
    secret = tmp_path / "secret"
    secret.write_text("5e" * 32)
    secret.chmod(0o600)
    shared = {
        "remote__store": f"file://{tmp_path}/store",
        "remote__secret_file": str(secret),
        "remote__lookup_wait": "5s",
        "ssd__gate": "false",
    }
    (tmp_path / "store").mkdir()
    with Daemon(**shared) as one, Daemon(**shared) as other:
        engine = start(one, SHAPES[shape], **PATIENT)
        store_all(engine, ledger)
        chunks = one.wait_idle()["chunks_stored"]
        one.wait_status(lambda status: status["remote"]["chunks_written"] >= chunks)
        newcomer = start(other, SHAPES[shape], **PATIENT)
        all_are_loaded(newcomer, ledger)
        assert other.status()["remote"]["chunks_read"] > 0


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("shape", SHAPES)
def test_history(shape, seed, ledger, start):
    """kvistd is stopped, killed and started again, and finds what it had written."""
    print(f"KVIST_SEED={seed} shape: {shape}")
    with Daemon(**ON_SSD) as daemon:
        engine = start(daemon, SHAPES[shape], lookup_timeout_s=0.5, load_timeout_s=2.0)
        history = History(seed, [engine], ledger, daemon, Faults(pause=10, kill=5, stop=15))
        history.play(250)
        history.rest()
        print(history.counts)
