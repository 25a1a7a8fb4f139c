"""kvist for vLLM, unpatched:

    --kv-transfer-config '{"kv_connector": "KvistConnector", "kv_connector_module_path": "kvist.vllm", "kv_role": "kv_both",
                           "kv_load_failure_policy": "recompute"}'

Settings go under `kv_connector_extra_config`; see `kvist.vllm.settings`.
"""

from kvist.vllm.connector import KvistConnector

__all__ = ["KvistConnector"]
