"""What every model of the API shares: spelling, tolerance, and the place of CEL rules."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


@dataclass(frozen=True)
class Rule:
    """One CEL rule of the CRD, as in x-kubernetes-validations.

    `message` says what to do; `message_expression` (CEL) replaces it where the message must name the offending value.
    `field_path` is where kubectl shows the error, relative to the model, such as `.tensorParallelSize`.
    """

    rule: str
    message: str
    message_expression: str | None = None
    field_path: str | None = None


class Model(BaseModel):
    """A part of the custom resource.

    Unknown fields are ignored on reading, since the installed CRD may be newer than the operator; strictness is the
    API server's. `rules` become x-kubernetes-validations of the generated schema.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)
    rules: ClassVar[tuple[Rule, ...]] = ()


def list_map(*keys: str) -> dict[str, Any]:
    """Schema extras of a list that server-side apply merges by `keys`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
"""Schema extras of a list that is replaced as a whole."""

PRESERVE: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
"""Schema extras of an object whose fields Kubernetes itself defines."""

Quantity = Annotated[
    str, Field(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei|e[0-9]+)?$")
]
"""A Kubernetes quantity, such as 64Gi."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""Name of a Kubernetes object in the same namespace."""


class SecretKeyRef(Model):
    """A key of a Secret in the same namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: str = Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", description="Key within the Secret.")


class LocalObjectReference(Model):
    """A reference to an object in the same namespace."""

    name: ObjectName = Field(description="Name of the object.")


class EnvVar(Model):
    """An environment variable, as in a pod's container."""

    name: str = Field(min_length=1, max_length=256, description="Name of the variable.")
    value: str | None = Field(None, max_length=32768, description="Literal value.")
    value_from: dict[str, Any] | None = Field(
        None,
        description="Source of the value, as in a pod's container (secretKeyRef, configMapKeyRef, fieldRef).",
        json_schema_extra=PRESERVE,
    )


Args = Annotated[
    list[Annotated[str, Field(max_length=4096)]],
    Field(max_length=64, json_schema_extra=ATOMIC),
]
"""Command-line arguments of the engine, one string each."""

EnvVars = Annotated[list[EnvVar], Field(max_length=64, json_schema_extra=list_map("name"))]
"""Environment variables of the engine."""
