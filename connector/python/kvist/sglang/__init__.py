"""kvist as SGLang's third cache level, unpatched:

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "kvist", "module_path": "kvist.sglang",
        "class_name": "KvistStorage", "interface_v1": 1, "allocator": "shm", "hicache_storage_pass_prefix_keys": true}'

Settings go into the same extra config; see `kvist.sglang.settings`. The other way, behind SGLang's radix tree, is `--radix-cache-backend kvist`:
`kvist.sglang.radix_cache`. The guide is examples/sglang/README.md.
"""

from kvist.sglang.storage import KvistStorage

__all__ = ["KvistStorage"]
