"""A tiny LFM2 with random weights from a seed, as a checkpoint: two of its layers in three are short convolutions, whose state is what they still need
of the last two tokens. (Of the recurrent models that vLLM's build for CPUs has, it runs this one; Mamba 2 fails there by itself, at a prompt of two chunks.)"""

import pathlib

import torch
from checkpoint import Weights, save

CONFIG = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "hidden_size": 256,
    "block_dim": 256,
    "conv_dim": 256,
    "conv_L_cache": 3,
    "conv_bias": False,
    "intermediate_size": 512,
    "block_ff_dim": 512,
    "block_auto_adjust_ff_dim": False,
    "num_hidden_layers": 6,
    "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention", "conv"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "norm_eps": 1e-5,
    "torch_dtype": "float32",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write(under: pathlib.Path, seed: int = 7) -> str:
    random = Weights(seed)
    hidden, inner, vocabulary = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    size = hidden // CONFIG["num_attention_heads"]
    kv = CONFIG["num_key_value_heads"] * size
    weights = {
        "model.embed_tokens.weight": random.plain(vocabulary, hidden),
        "model.embedding_norm.weight": torch.full((hidden,), 3.0 / hidden**0.5),
    }
    for i, kind in enumerate(CONFIG["layer_types"]):
        layer = f"model.layers.{i}."
        weights |= {
            layer + "operator_norm.weight": torch.ones(hidden),
            layer + "ffn_norm.weight": torch.ones(hidden),
            layer + "feed_forward.w1.weight": random.matrix(inner, hidden),
            layer + "feed_forward.w3.weight": random.matrix(inner, hidden),
            layer + "feed_forward.w2.weight": random.matrix(hidden, inner),
        }
        if kind == "conv":
            weights |= {
                layer + "conv.conv.weight": random.plain(hidden, 1, CONFIG["conv_L_cache"]),
                layer + "conv.in_proj.weight": random.matrix(3 * hidden, hidden),
                layer + "conv.out_proj.weight": random.matrix(hidden, hidden, 4.0),
            }
        else:
            weights |= {
                layer + "self_attn.q_layernorm.weight": torch.ones(size),
                layer + "self_attn.k_layernorm.weight": torch.ones(size),
                layer + "self_attn.q_proj.weight": random.matrix(hidden, hidden),
                layer + "self_attn.k_proj.weight": random.matrix(kv, hidden),
                layer + "self_attn.v_proj.weight": random.matrix(kv, hidden, 4.0),
                layer + "self_attn.out_proj.weight": random.matrix(hidden, hidden, 4.0),
            }
    return save(under, CONFIG, weights)
