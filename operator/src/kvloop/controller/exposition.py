"""The few of an engine's metrics that the operator needs, read line by line: the rest is not even parsed.

Names are those of vLLM 0.32; an engine that lacks one tells nothing of that. Series of several cores (the label engine)
are added up.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kvloop.api.counters import Flat, Path

_PLAIN = {
    "vllm:request_prefill_kv_computed_tokens_count": "requests",
    "vllm:nixl_xfer_time_seconds_count": "transfers",
    "vllm:nixl_xfer_time_seconds_sum": "transfer_seconds",
    "vllm:nixl_bytes_transferred_sum": "transfer_bytes",
    "vllm:nixl_num_failed_transfers_total": "failed_transfers",
    "vllm:nixl_num_kv_expired_reqs_total": "expired",
    "vllm:nixl_num_notifications_after_expiry_total": "late_reads",
    "vllm:prefix_cache_queries_total": "queried_tokens",
    "vllm:prefix_cache_hits_total": "hit_tokens",
    "kvloop_guard_offered_tokens_total": "offered_tokens",
    "kvloop_guard_verified_tokens_total": "verified_tokens",
}
_BY_LABEL = {
    "vllm:prompt_tokens_by_source_total": ("source", "prompt_tokens"),
    "vllm:nixl_xfer_time_seconds_bucket": ("le", "transfer_buckets"),
    "vllm:request_prefill_kv_computed_tokens_bucket": ("le", "computed_buckets"),
    "kvloop_guard_handles_total": ("reason", "handles"),
}
"""Cumulative buckets are counters like any other."""
_GAUGES = {
    "vllm:kv_cache_usage_perc": "used",
    "vllm:num_requests_running": "running",
}
_INFO = "kvloop_engine_info"
_CACHE = "vllm:cache_config_info"
_NAMES = frozenset([*_PLAIN, *_BY_LABEL, *_GAUGES, _INFO, _CACHE])
_LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')
"""Without the boundary, a name of a million letters would be tried from each of them."""
_BOUND = re.compile(r"\+Inf|[0-9]{1,20}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,2})?")

MOST: Final = 1e15
"""A larger number has not been counted: a million tokens a second make it in 30 years. Sums of such do not overflow."""
MOST_SERIES: Final = 256
"""Of one engine; vLLM has a third as many. What is kept of an engine is bounded, whatever image it runs."""


@dataclass
class Exposition:
    """What one engine tells: counters by path, gauges by name (means over its cores), and labels of the info series."""

    counters: Flat = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    info: dict[str, str] = field(default_factory=dict)
    cache: dict[str, str] = field(default_factory=dict)

    @property
    def guard(self) -> str:
        """active, inactive, or absent where the plugin is not loaded."""
        return {"": "absent", "1": "active"}.get(self.info.get("active", ""), "inactive")

    @property
    def boot(self) -> str:
        """Changes at every start; empty where the plugin is not loaded."""
        return self.info.get("boot_id", "")

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV cache holds; 0 where unknown."""
        blocks, size = (_number(self.cache.get(label, "")) for label in ("num_gpu_blocks", "block_size"))
        return round((blocks or 0) * (size or 0))


def parse(text: str) -> Exposition:
    """Read an engine's /metrics; lines that cannot be understood are passed over."""
    found, gauges = Exposition(), dict[str, list[float]]()
    for name, labels, value in _lines(text):
        if name == _INFO:
            found.info = labels
        elif name == _CACHE:
            found.cache = labels
        elif (number := _number(value)) is None:
            continue
        elif gauge := _GAUGES.get(name):
            gauges.setdefault(gauge, []).append(number)
        elif (path := _path(name, labels)) and (path in found.counters or len(found.counters) < MOST_SERIES):
            found.counters[path] = found.counters.get(path, 0) + number
    found.gauges = {name: sum(numbers) / len(numbers) for name, numbers in gauges.items()}
    return found


def _lines(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """Name, labels and value of the samples that are needed, of a thousand lines in a third of a millisecond."""
    for line in text.split("\n"):
        name, brace, rest = line.partition("{")
        if not brace:
            name, _, rest = line.partition(" ")
        if name in _NAMES:
            labels, _, value = rest.rpartition("} ") if brace else ("", "", rest)
            yield name, dict(_LABEL.findall(labels)), value.partition(" ")[0]


def _path(name: str, labels: dict[str, str]) -> Path | None:
    """None for a bucket without a bound."""
    if name in _PLAIN:
        return (_PLAIN[name],)
    label, field_name = _BY_LABEL[name]
    told = labels.get(label, "")
    return None if label == "le" and not _BOUND.fullmatch(told) else (field_name, told)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= MOST else None
