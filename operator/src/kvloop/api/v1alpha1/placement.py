"""`spec.placement`: on which nodes the engines run."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from kvloop.api.v1alpha1.base import ATOMIC, PRESERVE, Model, ObjectName, Rule


class SameZone(StrEnum):
    """Whether prefill and decode must share a zone. EFA traffic cannot leave one."""

    REQUIRED = "Required"
    PREFERRED = "Preferred"
    NONE = "None"


Toleration = Annotated[dict[str, Any], Field(description="A toleration, as in a pod.", json_schema_extra=PRESERVE)]


class PlacementSpec(Model):
    """Node selection for both roles."""

    instance_type: str | None = Field(
        None,
        max_length=63,
        pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$",
        description="EC2 instance type, such as p5en.48xlarge; selects nodes and the defaults that depend on it.",
    )
    zone: str | None = Field(
        None,
        max_length=63,
        pattern=r"^[a-z]{2,4}(-[a-z]+)+-[0-9]+(-[a-z]+-[0-9]+)?[a-z]$",
        description="Availability zone, such as ap-south-1b. Pinning it avoids pods that split over zones.",
    )
    same_zone: SameZone = Field(
        SameZone.REQUIRED, description="Whether all engine pods must run in one zone; EFA cannot cross zones."
    )
    node_selector: dict[str, Annotated[str, Field(max_length=63)]] = Field(
        default_factory=dict, max_length=32, description="Labels that nodes must have."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list,
        max_length=32,
        description="Tolerations beside those for GPU taints, which are always set. As in a pod.",
        json_schema_extra=ATOMIC,
    )
    priority_class_name: ObjectName | None = Field(None, description="PriorityClass of the engine pods.")
    placement_group: str | None = Field(
        None, max_length=255, description="Id of an EC2 cluster placement group, preferred by Karpenter's node label."
    )
    capacity_reservation: str | None = Field(
        None, max_length=255, description="Id of an EC2 capacity reservation, preferred by Karpenter's node label."
    )

    rules: ClassVar = (
        Rule(
            "!has(self.instanceType) || !self.instanceType.matches('^(trn|inf)[0-9]')",
            "Neuron instance types are not supported: choose one with GPUs",
            field_path=".instanceType",
        ),
    )
