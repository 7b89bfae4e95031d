"""`status`: what is true now. Integers and strings only, rounded, so that it changes seldom."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import Field, ValidationError

from kvloop.api.v1alpha1.base import Model, list_map
from kvloop.api.v1alpha1.reuse import AdviceStatus, ReuseStatus


class ConditionStatus(StrEnum):
    """Truth of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class StatusCondition(Model):
    """A standard Kubernetes condition."""

    type: str = Field(max_length=316, description="Type of the condition.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    observed_generation: int = Field(ge=0, description="Generation of the spec that the condition was computed from.")
    last_transition_time: str = Field(
        description="When the status of the condition last changed.", json_schema_extra={"format": "date-time"}
    )
    reason: str = Field(max_length=1024, description="One CamelCase word.")
    message: str = Field(max_length=32768, description="What it means and what to do.")


class RoleStatus(Model):
    """Pods of one role."""

    desired: int = Field(0, description="Pods that there should be.")
    ready: int = Field(0, description="Pods of any revision that are ready.")
    updated: int = Field(0, description="Pods of the newest template.")
    summary: str = Field("", max_length=32, description="ready/desired, for kubectl get.")


class RouterStatus(Model):
    """Pods of the router."""

    desired: int = Field(0, description="Pods that there should be.")
    ready: int = Field(0, description="Pods that are ready.")
    summary: str = Field("", max_length=32, description="ready/desired, for kubectl get.")


class ResolvedStatus(Model):
    """Values that the spec left to the operator."""

    vllm_version: str | None = Field(None, max_length=64, description="vLLM version that was assumed.")
    efa_devices_per_pod: dict[str, int] = Field(default_factory=dict, description="EFA devices of one pod, by role.")
    gpus_per_pod: dict[str, int] = Field(default_factory=dict, description="Accelerators of one pod, by role.")
    router_image: str | None = Field(None, max_length=1024, description="Router image in use.")


class RolloutStatus(Model):
    """The rollout in progress, or the last one."""

    revision: str = Field("", max_length=16, description="Newest revision.")
    started_at: str | None = Field(
        None, description="When its rollout began.", json_schema_extra={"format": "date-time"}
    )
    last_progress_at: str | None = Field(
        None,
        description="When pods or their readiness last changed; progressDeadlineSeconds count from here, or from when"
        " the resource was last ready.",
        json_schema_extra={"format": "date-time"},
    )
    message: str = Field("", max_length=1024, description="Step in words; empty when all is rolled out.")


class Status(Model):
    """What is true now of a DisaggregatedInference."""

    observed_generation: int | None = Field(
        None, description="Generation of the spec that the status was computed from."
    )
    conditions: list[StatusCondition] = Field(
        default_factory=list, max_length=16, description="Standard conditions.", json_schema_extra=list_map("type")
    )
    url: str | None = Field(None, max_length=1024, description="Where clients inside the cluster reach the router.")
    prefill: RoleStatus = Field(default_factory=RoleStatus, description="Prefill pods.")
    decode: RoleStatus = Field(default_factory=RoleStatus, description="Decode pods.")
    router: RouterStatus = Field(default_factory=RouterStatus, description="Router pods.")
    rollout: RolloutStatus | None = Field(None, description="Rollout in progress, or the last one.")
    resolved: ResolvedStatus | None = Field(None, description="Values that the spec left to the operator.")
    reuse: ReuseStatus | None = Field(None, description="How much KV came back.")
    advice: AdviceStatus | None = Field(None, description="What to set, from this system's own traffic.")

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """A status as it stands in the cluster, but for parts that cannot be read: these are made anew.

        Another version of the operator may have written it, or somebody by hand.
        """
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            bad = {each["loc"][:2] if each["loc"][0] == "conditions" else each["loc"][:1] for each in error.errors()}
        kept = {name: value for name, value in found.items() if (name,) not in bad}
        if "conditions" in kept:
            kept["conditions"] = [each for i, each in enumerate(kept["conditions"]) if ("conditions", i) not in bad]
        return cls.model_validate(kept)
