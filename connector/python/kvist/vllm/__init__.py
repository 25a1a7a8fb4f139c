"""kvist for vLLM, unpatched:

    --kv-transfer-config '{"kv_connector": "KvistConnector", "kv_connector_module_path": "kvist.vllm", "kv_role": "kv_both",
                           "kv_load_failure_policy": "recompute"}'

Settings go under `kv_connector_extra_config`; see `kvist.vllm.settings`.
"""

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.core import block_pool

# What this connector stands on, and other versions lack: failed loads by request, and word of blocks that are handed out.
if not hasattr(base, "KVConnectorTransferResults") or not hasattr(block_pool.BlockPool, "unpin_blocks"):
    raise ImportError(f"kvist.vllm serves vLLM 0.32; this is {vllm.__version__}")

from kvist.vllm.connector import KvistConnector  # noqa: E402

__all__ = ["KvistConnector"]
