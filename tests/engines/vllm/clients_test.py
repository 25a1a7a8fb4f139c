"""What clients and operators send beside tokens: whatever it is, the engine goes on, and no other request's KV is taken for it."""

import pytest
from contents import Identity
from scenarios import prompt
from vllm.lora.request import LoRARequest


@pytest.mark.parametrize(
    "params",
    [
        {"kvist": "never"},
        {"kvist": ["x"]},
        {"kvist": {"expected_reuse": "nonsense"}},
        {"kvist": {"expected_reuse": {"a": [1]}, "session_ended": {}}},
        {"kvist": {"stop_reason": []}},
        {"other": {}},
    ],
    ids=str,
)
def test_a_hint_that_is_none_ends_nothing(daemon, ledger, start, params):
    engine = start(daemon)
    for number in range(2):  # the second one's warning is the first one's
        engine.add(prompt(number, 100), kv_transfer_params=params)
        engine.settle(ledger)
    engine.reset()
    engine.loaded_tokens()
    engine.prefill(prompt(1, 100))
    engine.settle(ledger)
    assert engine.loaded_tokens() == 96


def test_a_hint_is_taken(daemon, ledger, start):
    engine = start(daemon)
    engine.add(prompt(1, 100), kv_transfer_params={"kvist": {"session_ended": True, "expected_reuse": "never", "stop_reason": "tool_call"}})
    engine.settle(ledger)
    daemon.wait_idle()


@pytest.mark.parametrize("salt", ["\ud800", "a\0b"], ids=["surrogate", "nul"])
def test_a_salt_that_no_key_can_hold_is_left_to_vllm(daemon, ledger, start, salt, monkeypatch):
    engine = start(daemon)
    engine.prefill(prompt(1, 100), identity=Identity(salt=salt))
    engine.settle(ledger)
    assert daemon.status()["chunks_stored"] == 0


def test_an_adapter_whose_files_have_changed_is_left_to_vllm_until_it_is_loaded_anew(daemon, ledger, start, tmp_path):
    """Between the change and vLLM's next load of it nobody knows which weights compute."""
    (tmp_path / "adapter_model.safetensors").write_bytes(b"1")

    def loaded(number: int, tokens: list[int]) -> int:
        engine.reset()
        engine.loaded_tokens()
        engine.prefill(tokens, lora=LoRARequest("a", number, str(tmp_path)))
        engine.settle(ledger)
        return engine.loaded_tokens()

    engine = start(daemon)
    assert loaded(1, prompt(1, 100)) == 0
    assert loaded(1, prompt(1, 100)) == 96
    (tmp_path / "adapter_model.safetensors").write_bytes(b"22")
    assert loaded(1, prompt(1, 100)) == 0
    assert loaded(1, prompt(2, 100)) == 0
    assert loaded(1, prompt(2, 100)) == 0, "what was computed by nobody knows which weights was stored"
    assert loaded(2, prompt(1, 100)) == 0
    assert loaded(2, prompt(1, 100)) == 96
