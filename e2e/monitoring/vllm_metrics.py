"""vLLM's metrics that dashboard and alerts use: families as they are exposed, with their labels.

Source: vLLM 0.32.0, `vllm/v1/metrics/loggers.py` (PrometheusStatLogger) and
`vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py` (NixlPromMetrics); every one was seen on the /metrics of a
running 0.32.0 with the NIXL connector. `e2e/engine` looks for all of them on real engines.
"""

from typing import Final

_ENGINE: Final = frozenset({"model_name", "engine"})

FAMILIES: Final[dict[str, frozenset[str]]] = {
    "vllm:kv_cache_usage_perc": _ENGINE,
    "vllm:num_requests_running": _ENGINE,
    "vllm:num_requests_waiting": _ENGINE,
    "vllm:prefix_cache_hits_total": _ENGINE,
    "vllm:prefix_cache_queries_total": _ENGINE,
    "vllm:prompt_tokens_by_source_total": _ENGINE | {"source"},
    "vllm:nixl_bytes_transferred": _ENGINE,
    "vllm:nixl_xfer_time_seconds": _ENGINE,
    "vllm:nixl_num_failed_transfers_total": _ENGINE,
    "vllm:nixl_num_failed_notifications_total": _ENGINE,
    "vllm:nixl_num_kv_expired_reqs_total": _ENGINE,
    "vllm:nixl_num_notifications_after_expiry_total": _ENGINE,
}
