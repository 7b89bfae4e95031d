"""The custom resource itself, and the rules that look at more than one part of it."""

from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field

from kvloop.api.instances import INSTANCE_TYPES
from kvloop.api.labels import API_VERSION, KIND
from kvloop.api.v1alpha1.base import Model, Rule
from kvloop.api.v1alpha1.engine import EngineSpec, RoleSpec
from kvloop.api.v1alpha1.model import ModelSpec
from kvloop.api.v1alpha1.placement import PlacementSpec
from kvloop.api.v1alpha1.router import RouterSpec
from kvloop.api.v1alpha1.status import Status
from kvloop.api.v1alpha1.transfer import TransferSpec

MAX_NAME_LENGTH = 40
"""Longest name of the resource; leaves room for the suffixes of its children within 63 characters."""


class RolloutSpec(Model):
    """How changes reach the engines."""

    paused: bool = Field(False, description="Hold the rollout where it is.")
    progress_deadline_seconds: int = Field(
        1800,
        ge=60,
        le=86400,
        description="Stalled when a rollout makes no progress for this long; loading weights counts.",
    )


class PodMonitorMode(StrEnum):
    """Whether PodMonitors are made; Auto makes them where the Prometheus operator's CRDs are installed."""

    AUTO = "Auto"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class MonitoringSpec(Model):
    """Scraping by the Prometheus operator."""

    pod_monitor: PodMonitorMode = Field(PodMonitorMode.AUTO, description="Whether to make PodMonitors.")


def _table(value: dict[str, int]) -> str:
    return "{" + ", ".join(f"'{name}': {number}" for name, number in value.items()) + "}"


_EFA = _table({name: row.efa for name, row in INSTANCE_TYPES.items()})
_GPUS = _table({name: row.gpus for name, row in INSTANCE_TYPES.items()})
_TYPE = "self.placement.instanceType"
_KNOWN = f"has({_TYPE}) && {_TYPE} in {_GPUS}"
_DEVICES = "self.transfer.efa.devicesPerPod"


def _gpus(role: str) -> str:
    return f"(has(self.{role}.gpus) ? self.{role}.gpus : self.{role}.tensorParallelSize)"


def _gpu_rule(role: str) -> Rule:
    return Rule(
        f"!({_KNOWN}) || {_gpus(role)} <= {_GPUS}[{_TYPE}]",
        f"{role} asks for more GPUs than the instance type has",
        message_expression=f"'{role} asks for ' + string({_gpus(role)}) + ' GPUs, but ' + {_TYPE} + ' has '"
        f" + string({_GPUS}[{_TYPE}]) + '; lower tensorParallelSize or gpus'",
        field_path=f".{role}",
    )


def _older_than(minor: int) -> str:
    version = "self.engine.version"
    return f"has({version}) && int({version}.split('.')[0]) == 0 && int({version}.split('.')[1]) < {minor}"


class Spec(Model):
    """The wanted prefill/decode deployment."""

    model: ModelSpec = Field(description="The model that both roles serve.")
    engine: EngineSpec = Field(description="What prefill and decode engines have in common.")
    prefill: RoleSpec = Field(default_factory=RoleSpec, description="Prefill engines.")
    decode: RoleSpec = Field(default_factory=RoleSpec, description="Decode engines.")
    transfer: TransferSpec = Field(default_factory=TransferSpec, description="KV transfer in both directions.")
    placement: PlacementSpec = Field(default_factory=PlacementSpec, description="On which nodes the engines run.")
    router: RouterSpec = Field(default_factory=RouterSpec, description="The router.")
    rollout: RolloutSpec = Field(default_factory=RolloutSpec, description="How changes reach the engines.")
    monitoring: MonitoringSpec = Field(default_factory=MonitoringSpec, description="Scraping.")

    rules: ClassVar = (
        Rule(
            "self.decode.tensorParallelSize >= self.prefill.tensorParallelSize",
            "decode.tensorParallelSize must be at least prefill.tensorParallelSize: vLLM's NIXL connector refuses the contrary",
            field_path=".decode.tensorParallelSize",
        ),
        _gpu_rule("prefill"),
        _gpu_rule("decode"),
        Rule(
            f"self.transfer.fabric != 'EFA' || !({_KNOWN}) || {_EFA}[{_TYPE}] > 0",
            "the instance type has no EFA: choose another one, or transfer.fabric: UCX",
            message_expression=f"{_TYPE} + ' has no EFA: choose another instance type, or transfer.fabric: UCX'",
            field_path=".placement.instanceType",
        ),
        Rule(
            f"!has({_DEVICES}) || !({_KNOWN}) || {_DEVICES} <= {_EFA}[{_TYPE}]",
            "transfer.efa.devicesPerPod is more than the instance type has",
            message_expression=f"'transfer.efa.devicesPerPod is ' + string({_DEVICES}) + ', but ' + {_TYPE} + ' has '"
            f" + string({_EFA}[{_TYPE}])",
            field_path=".transfer.efa.devicesPerPod",
        ),
        Rule(
            f"!self.transfer.bidirectional || !({_older_than(21)})",
            "bidirectional transfer needs vLLM 0.21 or later: set transfer.bidirectional: false, or use a newer engine",
            field_path=".transfer.bidirectional",
        ),
        Rule(
            f"!({_older_than(22)}) || (self.transfer.kvLeaseDurationSeconds == 30"
            " && self.transfer.decoderKVBlocksTTLSeconds == 480)",
            "kvLeaseDurationSeconds and decoderKVBlocksTTLSeconds need vLLM 0.22 or later: remove them, or use a newer engine",
            field_path=".transfer",
        ),
        Rule(
            "self.router.replicas <= 1 || has(self.router.store.valkey)",
            "several routers must share what they remember: set router.store.valkey, or router.replicas: 1",
            field_path=".router.replicas",
        ),
    )


class ObjectMeta(Model):
    """The metadata that kvloop reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None
    resource_version: str = ""


class DisaggregatedInference(Model):
    """Prefill and decode engines of one model, and a router that returns each conversation's KV to prefill."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: ObjectMeta
    spec: Spec = Field(description="What should be.")
    status: Status = Field(default_factory=Status, description="What is.")

    rules: ClassVar = (
        Rule(
            f"self.metadata.name.size() <= {MAX_NAME_LENGTH}",
            f"metadata.name must have at most {MAX_NAME_LENGTH} characters, since the names of children derive from it",
        ),
    )


def parse(body: dict[str, Any]) -> DisaggregatedInference:
    """Read a custom resource as Kubernetes gives it.

    Raises:
        pydantic.ValidationError: a required field is missing or has the wrong type, as only an object stored under
            another version of the CRD can.
    """
    return DisaggregatedInference.model_validate(body)
