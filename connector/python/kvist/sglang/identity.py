"""What must be equal for KV bytes to be reusable, as far as SGLang lets it be seen; and what its page hashes tell apart."""

import hashlib
import logging
import os
import platform
from array import array
from typing import Any

import sglang
import torch

from kvist.describe import Group, Space
from kvist.sglang.layout import PageLayout
from kvist.sglang.settings import Settings, TreeSettings
from kvist.weights import digest, files

logger = logging.getLogger(__name__)

_NAME_BYTES = 255


def server_args() -> Any | None:
    """The arguments SGLang was started with; None where they can't be seen."""
    try:
        from sglang.srt.runtime_context import get_server_args
    except ImportError:  # earlier releases
        try:
            from sglang.srt.server_args import get_global_server_args as get_server_args
        except ImportError:
            return None
    try:
        return get_server_args()
    except (ValueError, AttributeError):  # not published yet
        return None


def keys_bind_namespaces() -> bool:
    """Whether SGLang's page hashes differ for requests of different cache_salt or extra_key (where LoRA is), asked of SGLang itself.

    Releases before that hash tokens only.
    """
    try:
        from sglang.srt.mem_cache.radix_cache import RadixKey
        from sglang.srt.mem_cache.utils import get_storage_hash_str

        tokens = array("q", range(4))
        keys = [RadixKey(tokens), RadixKey(tokens, extra_key="a"), RadixKey(tokens, cache_salt="a")]
        return len({tuple(get_storage_hash_str(key, None, page_size=4)) for key in keys}) == len(keys)
    except Exception:  # an interface of another release: then it doesn't bind them as we know it
        return False


def lora_is_on(args: Any | None) -> bool:
    return bool(getattr(args, "enable_lora", None)) or (
        getattr(args, "enable_lora", None) is None and bool(getattr(args, "lora_paths", None))
    )


def check_isolation(args: Any | None) -> None:
    """Raises where requests of different LoRA adapters would share KV; warns where those of different salts would."""
    if keys_bind_namespaces():
        return
    if lora_is_on(args):
        raise ValueError(
            f"SGLang {sglang.__version__} runs with LoRA, and its page hashes don't tell adapters apart: one adapter's KV would be taken "
            "for another's. Run without LoRA, or with an SGLang whose storage keys bind extra_key (0.5.23 does)"
        )
    logger.warning(
        "kvist: SGLang %s hashes pages by their tokens only: requests of different cache_salt or extra_key SHARE cached pages here. "
        "Give each tenant an SGLang of its own with a `namespace` of its own, or use an SGLang whose storage keys bind them (0.5.23 does)",
        sglang.__version__,
    )


def _path_or_files(path: str) -> str:
    return f"files {files(path)}" if os.path.exists(path) else f"path {path}"


def _commit(model: str, revision: str | None) -> str:
    """Which commit of a hub's model lies in the local cache; else the revision that was asked for."""
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json", revision=revision)
        if isinstance(found, str):
            return os.path.basename(os.path.dirname(found))  # .../snapshots/COMMIT/config.json
    except Exception:  # not a hub's model, or no cache: a looser name
        pass
    return revision or "unknown"


def _adapters(args: Any | None) -> list[str]:
    """Adapters are known to SGLang by name and path; what lies there is told here."""
    found = getattr(args, "lora_paths", None) or []
    if isinstance(found, dict):
        found = list(found.values())
    paths = [
        str(getattr(ref, "lora_path", None) or (ref.get("lora_path") if isinstance(ref, dict) else ref)) for ref in found
    ]
    return [_path_or_files(path.split("=", 1)[-1]) for path in paths]


def _revision(args: Any | None, named: str | None) -> str:
    if named is not None:
        weights = f"named {named}"
    elif args is None or getattr(args, "model_path", None) is None:
        weights = "unseen"
        logger.warning(
            "kvist: SGLang doesn't show its weights here; put `weights` into the extra config and change it with them"
        )
    elif os.path.exists(args.model_path):
        weights = _path_or_files(args.model_path)
    else:
        weights = f"commit {_commit(args.model_path, getattr(args, 'revision', None))}"
    names = ("dtype", "quantization", "kv_cache_dtype", "load_format", "json_model_override_args", "quantization_param_path")
    seed = getattr(args, "random_seed", None) if getattr(args, "load_format", None) == "dummy" else ""
    numbers = digest(*(f"{name}={getattr(args, name, None)}" for name in names), seed, *_adapters(args))
    return _fit(f"{weights} {numbers}")


def _fit(text: str) -> str:
    """At most 255 bytes, different texts staying different."""
    encoded = text.encode()
    if len(encoded) <= _NAME_BYTES:
        return text
    return encoded[:180].decode(errors="ignore") + " " + hashlib.sha256(encoded).hexdigest()


def space_of(config: Any, pool: Any, name: str, layout: PageLayout, replicated: bool, settings: Settings) -> Space:
    """The space of one rank's pages in one pool: each rank is an engine of its own to kvistd.

    config      SGLang's HiCacheStorageConfig
    name        of the pool: "kv", or that of a side pool
    replicated  all tensor-parallel ranks hold the same bytes (MLA), so they share them; data-parallel ranks always do
    """
    args = server_args()
    at = [
        f"pp{config.pp_rank}of{config.pp_size}",
        f"layers{getattr(pool, 'start_layer', '?')}-{getattr(pool, 'end_layer', '?')}",
    ]
    if not replicated:
        at.append(f"tp{config.tp_rank}of{config.tp_size}")
    if getattr(config, "attn_cp_size", 1) > 1:
        at.append(f"cp{config.attn_cp_rank}of{config.attn_cp_size}")
    devices = {str(getattr(getattr(info, "buffers", None), "layout", "")) for info in getattr(pool, "_buffer_infos", ())}
    numbers = {
        key: getattr(pool, key, None)
        for key in ("head_num", "head_dim", "v_head_dim", "layer_num", "kv_lora_rank", "kv_cache_dim")
    }
    meaning = digest(
        sglang.__version__,
        getattr(args, "attention_backend", None),
        type(pool).__name__,
        getattr(pool, "layout", None),
        getattr(pool, "storage_format_tag", None),
        layout.shape,
        sorted(numbers.items(), key=lambda item: item[0]),
        sorted(devices),
    )
    return Space(
        model=_fit(config.model_name or "unnamed"),
        revision=_revision(args, settings.weights),
        kv_dtype=str(layout.dtype).removeprefix("torch."),
        layout=_fit(f"sglang {name} {getattr(pool, 'layout', '')} {' '.join(at)} {meaning} namespace={settings.namespace}"),
        page_tokens=layout.page_tokens,
        chunk_tokens=layout.page_tokens,
        groups=(layout.group(),),
    )


def tree_space(
    args: Any, pool: Any, groups: tuple[Group, ...], page_tokens: int, settings: TreeSettings, ranks: int
) -> Space:
    """The space of one engine's own KV pools, of which each of its `ranks` keeps its share of the heads."""
    from sglang.srt.runtime_context import attention_backends  # of releases that have such trees

    names = (
        "head_num",
        "head_dim",
        "v_head_dim",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "layer_num",
        "start_layer",
        "end_layer",
    )
    meaning = digest(
        sglang.__version__,
        attention_backends(),
        type(pool).__name__,
        *(f"{name}={getattr(pool, name, None)}" for name in names),
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
    )
    path = getattr(args, "model_path", None) or "unnamed"
    return Space(
        model=_fit(os.path.basename(path.rstrip("/")) if os.path.exists(path) else path),
        revision=_revision(args, settings.weights),
        kv_dtype=f"{pool.dtype} as {pool.store_dtype}".replace("torch.", ""),
        layout=_fit(f"sglang tree {meaning} namespace={settings.namespace}"),
        page_tokens=page_tokens,
        chunk_tokens=settings.chunk_tokens_of(page_tokens),
        groups=groups,
        tensor_parallel=ranks,
    )
