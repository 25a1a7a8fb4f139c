"""Loaded by SGLang in each of its processes, as an entry point of `sglang.srt.plugins`: makes `--radix-cache-backend kvist` known."""


def register() -> None:
    from sglang.srt.mem_cache.registry import register_radix_cache_backend

    register_radix_cache_backend("kvist", _build)


def _build(context):
    from kvist.sglang.radix_cache import build  # with all that it needs, only where a tree is made

    return build(context)
