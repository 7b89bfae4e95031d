"""`spec.transfer`: how KV blocks travel, how long they are kept, and when fetching them pays."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from kvloop.api.flags import EXPIRY_SINCE
from kvloop.api.v1alpha1.base import Model, Quantity, Rule


class Fabric(StrEnum):
    """Transport of KV blocks: AWS EFA through libfabric, or UCX (RDMA or TCP)."""

    EFA = "EFA"
    UCX = "UCX"


class EFAMechanism(StrEnum):
    """How a pod gets its EFA devices."""

    DEVICE_PLUGIN = "DevicePlugin"
    DRA = "DynamicResourceAllocation"


class EFASpec(Model):
    """EFA devices of each engine pod."""

    devices_per_pod: int | None = Field(
        None, ge=1, le=64, description="EFA devices of one pod; by default in proportion to its GPUs, by instance type."
    )
    mechanism: EFAMechanism = Field(
        EFAMechanism.DEVICE_PLUGIN,
        description="DevicePlugin asks for vpc.amazonaws.com/efa; DynamicResourceAllocation makes a"
        " ResourceClaimTemplate.",
    )
    hugepages2_mi: Quantity | None = Field(
        None,
        alias="hugepages2Mi",
        description="2 MiB huge pages of one pod, in multiples of 2Mi. libfabric works without them; none by default.",
    )
    device_rdma: bool | None = Field(
        None,
        alias="deviceRDMA",
        description="FI_EFA_USE_DEVICE_RDMA: true aborts on devices without RDMA. By default true on the types"
        " that are known to have it.",
    )

    rules: ClassVar = (
        Rule(
            "!has(self.hugepages2Mi) || (quantity(self.hugepages2Mi).isGreaterThan(quantity('0'))"
            " && quantity(self.hugepages2Mi).isInteger() && quantity(self.hugepages2Mi).asInteger() % 2097152 == 0)",
            "hugepages2Mi must be a whole number of 2Mi pages, such as 5120Mi",
            field_path=".hugepages2Mi",
        ),
    )


class TransferSpec(Model):
    """KV transfer between prefill and decode, in both directions. Defaults are vLLM's own."""

    bidirectional: bool = Field(
        True,
        description="Return each conversation's KV from decode to prefill for its next turn. Before vLLM"
        f" {EXPIRY_SINCE[0]}.{EXPIRY_SINCE[1]} nothing is reused: handles do not tell when their lease ends.",
    )
    decoder_kv_blocks_ttl_seconds: int = Field(
        480,
        alias="decoderKVBlocksTTLSeconds",
        ge=15,
        le=86400,
        description="Seconds for which decode keeps the KV of a finished turn. Prefill declines"
        " the last 5 s and the router the last 10 s, so less than 15 s would never be used.",
    )
    kv_recompute_threshold_tokens: int = Field(
        64,
        alias="kvRecomputeThresholdTokens",
        ge=0,
        le=1048576,
        description="Fewest tokens worth fetching from decode; below it prefill computes. 0 = always fetch.",
    )
    kv_lease_duration_seconds: int = Field(
        30,
        alias="kvLeaseDurationSeconds",
        ge=5,
        le=86400,
        description="Seconds for which prefill keeps blocks for decode between heartbeats.",
    )
    fabric: Fabric = Field(Fabric.EFA, description="EFA selects NIXL's LIBFABRIC backend, UCX its UCX backend.")
    efa: EFASpec = Field(default_factory=EFASpec, description="EFA devices; used with fabric EFA only.")
