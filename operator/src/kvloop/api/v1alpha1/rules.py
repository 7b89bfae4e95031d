"""The rules over more than one part of the spec: what prefill, decode, fabric, nodes and router must agree on."""

from typing import Final

from kvloop.api.instances import INSTANCE_TYPES
from kvloop.api.v1alpha1.base import Rule

_TYPE: Final = "self.placement.instanceType"
_EFA_DEVICES: Final = "self.transfer.efa.devicesPerPod"


def _table(value: dict[str, int]) -> str:
    return "{" + ", ".join(f"'{name}': {number}" for name, number in value.items()) + "}"


_EFA: Final = _table({name: row.efa for name, row in INSTANCE_TYPES.items()})
_GPUS: Final = _table({name: row.gpus for name, row in INSTANCE_TYPES.items()})
_UNKNOWN_TYPE: Final = f"!has({_TYPE}) || !({_TYPE} in {_GPUS})"
"""True without a type or with one that is not in our table: such a spec is taken at its word."""


def _gpus(role: str) -> str:
    return f"(has(self.{role}.gpus) ? self.{role}.gpus : self.{role}.tensorParallelSize)"


def _gpu_rule(role: str) -> Rule:
    return Rule(
        f"{_UNKNOWN_TYPE} || {_gpus(role)} <= {_GPUS}[{_TYPE}]",
        f"{role} asks for more GPUs than the instance type has",
        message_expression=f"'{role} asks for %d GPUs, but %s has %d: lower tensorParallelSize or gpus'"
        f".format([{_gpus(role)}, {_TYPE}, {_GPUS}[{_TYPE}]])",
        field_path=f".{role}",
    )


_TAG: Final = ":[^/:@]+(@.+)?$"
_VERSION: Final = (
    f"(has(self.engine.version) ? self.engine.version : self.engine.image.find('{_TAG}').find('[:_v-]0[.][0-9]+'))"
)
"""vLLM's version: engine.version, or else the first thing in the image's tag that looks like one; may be empty."""


def _older_than(minor: int) -> str:
    """True (CEL) if vLLM is known to be older than 0.`minor`, which is from 21 to 29."""
    return f"{_VERSION}.matches('^[:_v-]?0[.]([0-9]|1[0-9]|2[0-{minor - 21}])([^0-9]|$)')"


ROLES_AGREE: Final = (
    Rule(
        "self.decode.tensorParallelSize >= self.prefill.tensorParallelSize",
        "decode.tensorParallelSize must be at least prefill.tensorParallelSize:"
        " vLLM's NIXL connector refuses the contrary",
        field_path=".decode.tensorParallelSize",
    ),
    Rule(
        "self.prefill.gpuResource.split('/')[0] == self.decode.gpuResource.split('/')[0]",
        "prefill.gpuResource and decode.gpuResource must be of one vendor: KV layouts differ",
        field_path=".decode.gpuResource",
    ),
)

NODES_SUFFICE: Final = (
    _gpu_rule("prefill"),
    _gpu_rule("decode"),
    Rule(
        f"self.transfer.fabric != 'EFA' || {_UNKNOWN_TYPE} || {_EFA}[{_TYPE}] > 0",
        "the instance type has no EFA: choose another one, or transfer.fabric: UCX",
        message_expression=f"'%s has no EFA: choose another instance type, or transfer.fabric: UCX'.format([{_TYPE}])",
        field_path=".placement.instanceType",
    ),
    Rule(
        f"!has({_EFA_DEVICES}) || {_UNKNOWN_TYPE} || {_EFA_DEVICES} <= {_EFA}[{_TYPE}]",
        "transfer.efa.devicesPerPod is more than the instance type has",
        message_expression=f"'transfer.efa.devicesPerPod is %d, but %s has %d'"
        f".format([{_EFA_DEVICES}, {_TYPE}, {_EFA}[{_TYPE}]])",
        field_path=".transfer.efa.devicesPerPod",
    ),
)

FABRIC_FITS: Final = (
    Rule(
        "self.transfer.fabric == 'EFA' || !(has(self.transfer.efa.devicesPerPod)"
        " || has(self.transfer.efa.hugepages2Mi) || has(self.transfer.efa.deviceRDMA))",
        "transfer.efa needs transfer.fabric: EFA: set it, or remove what is under transfer.efa",
        field_path=".transfer.efa",
    ),
    Rule(
        f"self.transfer.fabric != 'EFA' || ({_gpus('prefill')} > 0 && {_gpus('decode')} > 0)",
        "gpus: 0 (engines on a CPU) needs transfer.fabric: UCX, since EFA moves KV between GPUs",
        field_path=".transfer.fabric",
    ),
    Rule(
        "self.transfer.fabric != 'EFA' || self.placement.sameZone == 'Required' || has(self.placement.zone)",
        "EFA cannot leave a zone: set placement.sameZone: Required, or placement.zone",
        field_path=".placement.sameZone",
    ),
    Rule(
        "self.transfer.efa.mechanism != 'DynamicResourceAllocation'"
        " || (self.prefill.gpuResource == 'nvidia.com/gpu' && self.decode.gpuResource == 'nvidia.com/gpu')",
        "transfer.efa.mechanism: DynamicResourceAllocation claims NVIDIA GPUs: set gpuResource: nvidia.com/gpu,"
        " or mechanism: DevicePlugin",
        field_path=".transfer.efa.mechanism",
    ),
)

ENGINE_KNOWS: Final = (
    Rule(
        f"!self.transfer.bidirectional || !{_older_than(21)}",
        "bidirectional transfer needs vLLM 0.21 or later: set transfer.bidirectional: false, use a newer engine, or set"
        " engine.version if the image's tag does not tell it",
        field_path=".transfer.bidirectional",
    ),
    Rule(
        f"!{_older_than(22)} || (self.transfer.kvLeaseDurationSeconds == 30"
        " && self.transfer.decoderKVBlocksTTLSeconds == 480)",
        "kvLeaseDurationSeconds and decoderKVBlocksTTLSeconds need vLLM 0.22 or later:"
        " remove them, or use a newer engine",
        field_path=".transfer",
    ),
)

ROUTER_FITS: Final = (
    Rule(
        "self.router.replicas <= 1 || has(self.router.store.valkey)",
        "several routers must share what they remember: set router.store.valkey, or router.replicas: 1",
        field_path=".router.replicas",
    ),
    Rule(
        "!has(self.router.leaseSeconds) || self.router.leaseSeconds <= self.transfer.decoderKVBlocksTTLSeconds",
        "router.leaseSeconds must be at most transfer.decoderKVBlocksTTLSeconds, when decode ends the lease itself",
        field_path=".router.leaseSeconds",
    ),
)

SPEC_RULES: Final = (*ROLES_AGREE, *NODES_SUFFICE, *FABRIC_FITS, *ENGINE_KNOWS, *ROUTER_FITS)
