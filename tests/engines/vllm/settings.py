"""vLLM's configuration for the contract tests: one place for the connector's setting names, a tiny local model, groups of layers."""

import dataclasses
import json
import pathlib

import torch
from layouts import Layout
from vllm.config import VllmConfig
from vllm.config.kv_events import KVEventsConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

VOCABULARY = 512
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


STATES = -1


@dataclasses.dataclass(frozen=True)
class Shape:
    """The engine of a test. `windows`: one entry a cache group, 0 for full attention, STATES for recurrent layers, else the window in tokens."""

    blocks: int = 48
    block: int = 16
    chunk: int = 32
    layers: int = 2  # of each group
    windows: tuple[int, ...] = (0,)
    layout: Layout = Layout("hnd")
    max_seqs: int = 8
    step_tokens: int = 96
    max_model_len: int = 1024
    tp: int = 1
    pp: int = 1  # each stage has `layers` of each group
    replicated: bool = False
    drafts: int = 0
    prefix_caching: bool = True
    policy: str = "fcfs"  # or priority
    ahead: bool = False  # vLLM's default where it can: it schedules a step before it knows how the last one went
    retention: int | None = None  # of windows and states, in vLLM's own cache: all, or 0: its default, few
    second_runner: bool = False  # vLLM's second model runner, which touches new blocks earlier
    events: str = ""  # where its KV events are published: an endpoint of ZMQ


def model_dir(under: pathlib.Path) -> str:
    """A model without weights: nothing here runs one."""
    under.mkdir(exist_ok=True)
    (under / "config.json").write_text(json.dumps(MODEL))
    return str(under)


def transfer_config(socket: str, chunk: int, connector: str = "KvistConnector", module: str = "kvist.vllm", **extra) -> dict:
    return {
        "kv_connector": connector,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": socket, "chunk_tokens": chunk, **extra},
    }


class _OfSecondRunner(VllmConfig):
    use_v2_model_runner = True


def vllm_config(model: str, shape: Shape, transfer: dict | None, engine_id: str) -> VllmConfig:
    arguments = dict(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        block_size=shape.block,
        max_model_len=shape.max_model_len,
        max_num_seqs=shape.max_seqs,
        max_num_batched_tokens=shape.step_tokens,
        enable_prefix_caching=shape.prefix_caching,
        tensor_parallel_size=shape.tp,
        pipeline_parallel_size=shape.pp,
        async_scheduling=shape.ahead,
        scheduling_policy=shape.policy,
        generation_config="vllm",
        load_format="dummy",
    )
    if transfer is not None:
        arguments["kv_transfer_config"] = {**transfer, "engine_id": engine_id}
    if shape.events:
        arguments["kv_events_config"] = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=shape.events)
    if shape.drafts:
        arguments["speculative_config"] = {"method": "ngram", "num_speculative_tokens": shape.drafts, "prompt_lookup_max": 2}
    config = EngineArgs(**arguments).create_engine_config()
    config.cache_config.num_gpu_blocks = shape.blocks
    if shape.second_runner:
        config.__class__ = _OfSecondRunner  # which vLLM itself refuses on CPUs
    if STATES in shape.windows:
        config.cache_config.mamba_cache_mode = "align"  # vLLM's choice for models that have such layers
    return config


def layer_name(group: int, layer: int, stage: int = 0) -> str:
    return f"model.layers.{stage * 1000 + group * 100 + layer}.self_attn.attn"


def kv_cache_config(shape: Shape, stage: int = 0) -> KVCacheConfig:
    """Of the workers of a pipeline stage."""
    groups = []
    for g, window in enumerate(shape.windows):
        common = dict(
            block_size=shape.block, num_kv_heads=shape.layout.heads, head_size=shape.layout.head_size, dtype=torch.float32
        )
        if window == STATES:
            # A page's bytes, as vLLM makes blocks of all groups equally large.
            bytes_of_page = 4 * shape.block * shape.layout.words
            spec = MambaSpec(
                block_size=shape.block,
                shapes=((bytes_of_page // 8,), (bytes_of_page // 8,)),
                dtypes=(torch.float32, torch.float32),
                mamba_cache_mode="align",
            )
        elif shape.layout.name == "mla":
            spec = MLAAttentionSpec(**{**common, "num_kv_heads": 1})
        elif window:
            spec = SlidingWindowSpec(**common, sliding_window=window)
        else:
            spec = FullAttentionSpec(**common)
        groups.append(KVCacheGroupSpec([layer_name(g, i, stage) for i in range(shape.layers)], spec))
    page = groups[0].kv_cache_spec.page_size_bytes
    # Layer i of every group lies in the same memory: a block belongs to one group at a time.
    tensors = [
        KVCacheTensor(
            size=page * shape.blocks * shape.layers,
            layers=[layer_name(g, i, stage) for i in range(shape.layers)],
            layer_stride=page * shape.blocks,
            block_stride=page,
        )
        for g in range(len(groups))
    ]
    return KVCacheConfig(
        num_blocks=shape.blocks,
        kv_cache_tensors=tensors,
        kv_cache_groups=groups,
        hash_block_size=shape.block,
        prefix_cache_retention_interval=shape.retention,
        kv_tp_replicas=shape.tp if shape.replicated else 1,
    )
