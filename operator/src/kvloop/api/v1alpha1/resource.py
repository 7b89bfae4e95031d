"""The custom resource itself, and the rules that look at more than one part of it."""

from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field

from kvloop.api.labels import API_VERSION, KIND
from kvloop.api.v1alpha1.base import Model, Rule
from kvloop.api.v1alpha1.engine import EngineSpec, RoleSpec
from kvloop.api.v1alpha1.model import ModelSpec
from kvloop.api.v1alpha1.placement import PlacementSpec
from kvloop.api.v1alpha1.router import RouterSpec
from kvloop.api.v1alpha1.rules import SPEC_RULES
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

    rules: ClassVar = SPEC_RULES


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
        Rule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must be lower case letters, digits and dashes, beginning with a letter: it names Services",
        ),
    )


def parse(body: dict[str, Any]) -> DisaggregatedInference:
    """Read a custom resource as Kubernetes gives it.

    Raises:
        pydantic.ValidationError: a required field is missing or has the wrong type, as only an object stored under
            another version of the CRD can.
    """
    return DisaggregatedInference.model_validate(body)
