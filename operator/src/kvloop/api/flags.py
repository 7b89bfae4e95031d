"""From a field of the spec to a vLLM flag or a connector key: one row per tunable, and from which vLLM on it exists.

Sources: `vllm serve --help` and NixlConnector's options in vLLM 0.32.0
(https://docs.vllm.ai/en/stable/features/nixl_connector_usage/). Where `since` is set, the row names the pull request;
in which release it is, tells the source of the releases 0.20 to 0.33.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kvloop.api.labels import Role

BOTH: Final = (Role.PREFILL, Role.DECODE)


class Where(StrEnum):
    """Where a value goes."""

    ARGUMENT = "argument"
    CONNECTOR = "kv-transfer-config"
    EXTRA = "kv_connector_extra_config"


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Flag:
    """One tunable.

    `path` is the field of the spec, with `{role}` for prefill or decode; `since` the first vLLM version, as
    (major, minor), that knows `name`; `convert` turns the field's value into vLLM's, and None leaves the flag out.
    """

    path: str
    name: str
    where: Where = Where.ARGUMENT
    roles: tuple[Role, ...] = BOTH
    since: tuple[int, int] = (0, 0)
    convert: Callable[[Any], Any] = _same

    def sentence(self) -> str:
        """What the field sets, for its description."""
        name = f"--{self.name}" if self.where is Where.ARGUMENT else f"{self.name} of {self.where}"
        return f"Sets {name}{_since(self.since)}."


def _since(version: tuple[int, int]) -> str:
    return f" (vLLM {version[0]}.{version[1]} and later)" if version > (0, 0) else ""


FLAGS: Final = (
    Flag("model.name", "served-model-name"),
    Flag("model.maxLength", "max-model-len"),
    Flag("engine.dtype", "dtype"),
    Flag("engine.kvCacheDtype", "kv-cache-dtype"),
    Flag("engine.blockSize", "block-size"),
    Flag("engine.shutdownTimeoutSeconds", "shutdown-timeout"),
    Flag("{role}.tensorParallelSize", "tensor-parallel-size"),
    Flag("{role}.prefixCaching", "enable-prefix-caching"),
    # https://github.com/vllm-project/vllm/pull/32553
    Flag("transfer.bidirectional", "bidirectional_kv_xfer", Where.EXTRA, since=(0, 21), convert=lambda on: on or None),
    Flag("transfer.kvRecomputeThresholdTokens", "kv_recompute_threshold", Where.EXTRA, since=(0, 21)),
    # https://github.com/vllm-project/vllm/pull/41383
    Flag("transfer.decoderKVBlocksTTLSeconds", "decoder_kv_blocks_ttl", Where.EXTRA, since=(0, 22)),
    Flag("transfer.kvLeaseDurationSeconds", "kv_lease_duration", Where.EXTRA, since=(0, 22)),
    Flag(
        "transfer.fabric",
        "backends",
        Where.EXTRA,
        convert=lambda fabric: {"EFA": ["LIBFABRIC"], "UCX": ["UCX"]}[fabric],
    ),
)

EXPIRY_SINCE: Final = (0, 26)
"""From here on decode's handle tells when its lease ends; the guard refuses one that does not.
https://github.com/vllm-project/vllm/pull/47021"""

ROLES_SINCE: Final = (0, 24)
"""From here on kv_both logs a deprecation warning, so P is kv_producer and D kv_consumer.
https://github.com/vllm-project/vllm/issues/43807"""

KV_ROLE: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
LOAD_FAILURE_POLICY: Final = {Role.PREFILL: "fail", Role.DECODE: "recompute"}
"""On P `recompute` hangs the request for ever and leaks its blocks (vLLM 0.32.0), so P fails and the router retries."""
