"""What must be equal for KV bytes to be reusable: the weights, and what a page's bytes mean."""

import os
import platform

import torch
import vllm
from vllm.config import VllmConfig
from vllm.lora.request import LoRARequest
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

from kvist.weights import digest, files


def weights(config: VllmConfig, named: str | None) -> tuple[str, str]:
    """(model, revision): two engines share KV only if both are equal.

    A local model is named by its files, one of a hub by its commit; `named` (the setting `weights`) overrides both. Besides: what else
    changes what the same tokens compute to.
    """
    model = config.model_config
    hf_config = model.hf_config
    commit = getattr(hf_config, "_commit_hash", None)
    if named is not None:
        revision = f"named {named}"
    elif os.path.exists(model.model):
        revision = f"files {files(model.model)}"
    else:
        revision = f"commit {commit or model.revision or 'unknown'}"
    numbers = digest(
        model.dtype,
        model.quantization,
        config.load_config.load_format,
        model.seed if config.load_config.load_format == "dummy" else "",
        hf_config.to_json_string() if hasattr(hf_config, "to_json_string") else hf_config,
    )
    name = os.path.basename(model.model.rstrip("/")) if os.path.exists(model.model) else model.model
    return name[-255:], f"{revision} {numbers}"


def layout(config: VllmConfig, kv_cache_config, device: torch.device) -> str:
    """What a page's bytes mean beyond their sizes: vLLM's version, the attention backends, how recurrent states lie, and for CPUs the instruction
    set that KV is packed for."""
    contexts = config.compilation_config.static_forward_context
    backends = sorted({backend.__name__ for layer in contexts.values() if (backend := getattr(layer, "attn_backend", None))})
    states = (is_conv_state_dim_first(),) if kv_cache_config.has_mamba_layers else ()
    specs = digest(*(group.kv_cache_spec for group in kv_cache_config.kv_cache_groups), *states)
    isa = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}" if device.type == "cpu" else ""
    return f"vllm {vllm.__version__} {' '.join(backends)} {kv_cache_config.kv_cache_layout or ''} {specs} {isa}"[:255]


class Adapters:
    """LoRA adapters by name and revision. Their files' sizes and times stand for the latter: another one can be put in an adapter's place.

    vLLM loads an adapter at its first request or, told so by its API, before, and perhaps again when it has had no room for it; by what its
    files were at each it can't be told. So an adapter whose files have changed since its number was seen first is no name for KV: None. (What
    is changed between a load by the API and the first request isn't seen: load adapters from folders that stay as they are.)
    """

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def name_of(self, request: LoRARequest | None) -> str | None:
        if request is None:
            return ""
        try:
            revision = files(request.lora_path)
        except OSError:
            revision = ""  # in no directory: of a hub
        name = f"{len(request.lora_name)}:{request.lora_name}{len(request.lora_path)}:{request.lora_path}{revision}"
        if getattr(request, "load_inplace", False):  # vLLM loads it anew for this request
            self._seen[request.lora_int_id] = name
        return name if self._seen.setdefault(request.lora_int_id, name) == name else None
