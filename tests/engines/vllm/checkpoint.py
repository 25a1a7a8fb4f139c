"""A tiny Llama with random weights from a seed, as a checkpoint: every page of a prompt moves the output (load_format=dummy gives all
parameters one seed, and outputs that hardly depend on anything)."""

import json
import pathlib

import torch
from safetensors.torch import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 10000.0,
}


class Weights:
    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def plain(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator)

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return self.plain(rows, columns) * gain / columns**0.5


def save(under: pathlib.Path, config: dict, weights: dict[str, torch.Tensor]) -> str:
    under.mkdir(parents=True, exist_ok=True)
    (under / "config.json").write_text(json.dumps(config))
    save_file(weights, under / "model.safetensors", metadata={"format": "pt"})
    return str(under)


def write(under: pathlib.Path, seed: int = 7) -> str:
    random = Weights(seed)
    hidden, inner, vocabulary = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    heads, kv_heads, size = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["head_dim"]
    weights = {
        "model.embed_tokens.weight": random.plain(vocabulary, hidden),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": random.matrix(vocabulary, hidden, 3.0),
    }
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        weights |= {
            layer + "input_layernorm.weight": torch.ones(hidden),
            layer + "post_attention_layernorm.weight": torch.ones(hidden),
            layer + "self_attn.q_proj.weight": random.matrix(heads * size, hidden),
            layer + "self_attn.k_proj.weight": random.matrix(kv_heads * size, hidden),
            layer + "self_attn.v_proj.weight": random.matrix(kv_heads * size, hidden, 4.0),
            layer + "self_attn.o_proj.weight": random.matrix(hidden, heads * size, 4.0),
            layer + "mlp.gate_proj.weight": random.matrix(inner, hidden),
            layer + "mlp.up_proj.weight": random.matrix(inner, hidden),
            layer + "mlp.down_proj.weight": random.matrix(hidden, inner),
        }
    return save(under, CONFIG, weights)
