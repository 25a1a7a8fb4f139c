"""Every layout of engines.md A.4 is carried right; what isn't known is refused at the start, with what was seen and what is supported."""

import dataclasses
import importlib
import sys

import pytest
import settings
import torch
import vllm
from layouts import LAYOUTS, Layout
from scenarios import prompt
from settings import Shape
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, MambaSpec


@pytest.mark.parametrize("windows", [(0,), (0, 64), (64,), (0, 48, 96)], ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_is_carried(name, windows, daemon, ledger, start):
    if len(windows) > 1 and name == "mla":
        pytest.skip("vLLM has no hybrid of MLA and sliding windows with one page size")
    engine = start(daemon, Shape(blocks=96, layout=Layout(name), windows=windows))
    tokens = prompt(1, 200)
    engine.prefill(tokens)
    engine.settle(ledger)
    engine.reset()
    for view in engine.workers[0].views:
        view.fill_(0)
    engine.workers[0].note_free_blocks()
    engine.prefill(tokens + prompt(2, 30))
    engine.settle(ledger)
    assert engine.loaded_tokens() == 192
    daemon.wait_idle()


def refused(model, daemon, change_cache=lambda config: config, change_tensors=lambda tensors: tensors) -> str:
    """The message with which a worker's connector refuses to start."""
    shape = Shape()
    config = settings.vllm_config(model, shape, settings.transfer_config(daemon.socket, shape.chunk), "refused")
    tensors = {
        settings.layer_name(0, i): t for i, t in enumerate(shape.layout.allocate(shape.blocks, shape.block, shape.layers))
    }
    with pytest.raises(Exception) as refusal:
        connector = KVConnectorFactory.create_connector(
            config, KVConnectorRole.WORKER, change_cache(settings.kv_cache_config(shape))
        )
        connector.register_kv_caches(change_tensors(tensors))
    assert daemon.status()["sessions"] == 0
    return str(refusal.value)


def with_spec(spec):
    def change(config):
        config.kv_cache_groups[0] = dataclasses.replace(config.kv_cache_groups[0], kv_cache_spec=spec)
        return config

    return change


def test_unknown_spec_is_refused(model, daemon):
    chunked = ChunkedLocalAttentionSpec(
        block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, attention_chunk_size=64
    )
    message = refused(model, daemon, with_spec(chunked))
    assert "ChunkedLocalAttentionSpec" in message and "FullAttentionSpec" in message


def test_states_that_vllm_does_not_tell_of_are_refused(model, daemon):
    def states(**how):
        return with_spec(MambaSpec(block_size=16, shapes=((2, 8),), dtypes=(torch.float32,), **how))

    for mode in ("none", "all"):
        message = refused(model, daemon, states(mamba_cache_mode=mode))
        assert f"'{mode}'" in message and "--mamba-cache-mode align" in message
    shape = Shape(windows=(0, settings.STATES), drafts=2)
    with pytest.raises(ValueError, match="speculative"):
        config = settings.vllm_config(model, shape, settings.transfer_config(daemon.socket, 16), "refused")
        KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, settings.kv_cache_config(shape))
    shape = Shape(windows=(0, settings.STATES))
    for how, why in (({"store": "on_eviction"}, "on_eviction.*eager"), ({"load": "layerwise"}, "layerwise.*async")):
        with pytest.raises(ValueError, match=why):
            config = settings.vllm_config(model, shape, settings.transfer_config(daemon.socket, 16, **how), "refused")
            KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, settings.kv_cache_config(shape))


def test_unknown_shape_is_refused(model, daemon):
    first = settings.layer_name(0, 0)
    message = refused(model, daemon, change_tensors=lambda t: {**t, first: torch.zeros(7, 2, 16, 16)})
    assert "(7, 2, 16, 16)" in message and "48" in message and first in message
    message = refused(model, daemon, change_tensors=lambda t: {**t, first: torch.zeros(48, 48, 16, 16)})
    assert "(48, 48, 16, 16)" in message


def test_missing_layer_is_refused(model, daemon):
    gone = settings.layer_name(0, 1)
    assert gone in refused(model, daemon, change_tensors=lambda t: {k: v for k, v in t.items() if k != gone})


def test_pages_that_overlap_are_refused(model, daemon):
    first = settings.layer_name(0, 0)
    overlapping = torch.zeros(48 * 2 * 16 * 16).as_strided((48, 2, 16, 16), (16, 256, 16, 1))
    assert first in refused(model, daemon, change_tensors=lambda t: {**t, first: overlapping})


def test_other_vllm_is_refused(monkeypatch):
    """One whose connectors can't report failed loads by request: at import, with the version that was seen and the one that is needed."""
    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    monkeypatch.delattr(f"{base}.KVConnectorTransferResults")
    for name in [name for name in sys.modules if name.startswith("kvist.vllm")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=f"0\\.32.*{vllm.__version__}"):
        importlib.import_module("kvist.vllm")


def test_untried_vllm_is_refused(model, daemon, monkeypatch):
    """With what was seen, what was tried, and what to set to start all the same."""
    shape = Shape()

    def make(**extra):
        transfer = settings.transfer_config(daemon.socket, shape.chunk, **extra)
        config = settings.vllm_config(model, shape, transfer, "untried")
        return KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, settings.kv_cache_config(shape))

    for untried in ("0.33.0", "0.3", "0.320.0", "1.0.32"):
        monkeypatch.setattr(vllm, "__version__", untried)
        with pytest.raises(
            ValueError, match=f"vLLM 0\\.32; this is {untried}.*kv_connector_extra_config.other_versions to true"
        ):
            make()
        make(other_versions=True)
    for tried in ("0.32.0+cpu", "0.32.1", "0.32.1.dev3", "0.32rc1"):
        monkeypatch.setattr(vllm, "__version__", tried)
        make()
    with pytest.raises(ValueError, match="other_versions is 1; wanted is true or false"):
        make(other_versions=1)


def test_misspelt_setting_is_refused(model, daemon):
    shape = Shape()
    config = settings.vllm_config(
        model, shape, settings.transfer_config(daemon.socket, shape.chunk, chunk_token=3), "refused"
    )
    with pytest.raises(ValueError, match="chunk_token.*chunk_tokens"):
        KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, settings.kv_cache_config(shape))
