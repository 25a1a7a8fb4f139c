"""vLLM itself, on the CPU, with a model most of whose layers are recurrent: what it says from kvist's states is what it says without kvist."""

import pytest
import recurrent_checkpoint
from llm_process import BLOCK, Llm, transfer
from real_engine_test import cached, distance, prompt, settle

pytestmark = pytest.mark.real

LENGTHS = (64, 100, 333, 700, 1100)
PROMPTS = [prompt(i, length) for i, length in enumerate(LENGTHS)]
# The last full block before the last token: vLLM ends a step there, and keeps the state. So it does at each end of a step of a long prompt.
ENDS = [(length - 1) // BLOCK * BLOCK for length in LENGTHS]
STEP = 512
OTHERS = [PROMPTS[3][:STEP] + prompt(50, 20), PROMPTS[4] + prompt(51, 20), PROMPTS[4][:600] + prompt(52, 20)]


def test_states_come_back(tmp_path, daemon):
    model = recurrent_checkpoint.write(tmp_path / "model")
    # vLLM keeps the state at each step's end itself: by default a slow kvistd might miss it.
    arguments = dict(enable_prefix_caching=True, max_num_batched_tokens=STEP, prefix_cache_retention_interval=STEP)
    with (
        Llm(model, None, tmp_path / "plain.log", **arguments) as plain,
        Llm(model, transfer(daemon.socket, chunk=0), tmp_path / "kvist.log", **arguments) as engine,
    ):
        cold = plain.one_by_one(PROMPTS)
        again = plain.one_by_one(PROMPTS)
        assert cached(again) == ENDS
        bound = 2 * max(distance(cold, again), 1e-6)
        plain.reset()
        others = plain.one_by_one(OTHERS)

        first = engine.one_by_one(PROMPTS)
        assert cached(first) == [0] * len(PROMPTS)
        assert distance(first, cold) <= bound

        def from_kvist(prompts):
            settle(engine, daemon)
            engine.reset()
            return engine.one_by_one(prompts)

        warm = from_kvist(PROMPTS)
        print(
            f"warm: {cached(warm)} of {LENGTHS} tokens from kvist, logprobs differ by up to {distance(warm, cold):.2e} (bound {bound:.2e})"
        )
        assert cached(warm) == ENDS
        assert distance(warm, cold) <= bound
        warm = from_kvist(OTHERS)
        assert cached(warm) == [STEP, 1088, STEP]
        assert distance(warm, others) <= bound

        # The negative control.
        tokens = prompt(100, 400)
        wanted = plain.one_by_one([tokens])
        engine.order("lose_states", on=True)
        assert distance(engine.one_by_one([tokens]), wanted) <= bound
        engine.order("lose_states", on=False)
        wrong = from_kvist([tokens])
        assert cached(wrong) == [384]
        print(f"a wrong state moves logprobs by {distance(wrong, wanted):.2e}")
        assert distance(wrong, wanted) > 50 * bound
