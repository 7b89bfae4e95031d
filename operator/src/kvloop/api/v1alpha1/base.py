"""What every model of the API shares: spelling, tolerance, and the place of CEL rules."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


@dataclass(frozen=True)
class Rule:
    """One CEL rule of the CRD, as in x-kubernetes-validations.

    `message` says what to do; `message_expression` (CEL) replaces it where the message must name the offending value.
    `field_path` is where kubectl shows the error, relative to the model, such as `.tensorParallelSize`.

    On a model that is a field's default, `rule` must hold for `{}` too, where no other default is filled in yet: the
    API server checks it so when the CRD is installed.
    """

    rule: str
    message: str
    message_expression: str | None = None
    field_path: str | None = None

    def schema(self) -> dict[str, Any]:
        """The entry of x-kubernetes-validations."""
        fields = {
            "rule": self.rule,
            "message": self.message,
            "messageExpression": self.message_expression,
            "fieldPath": self.field_path,
            "reason": "FieldValueInvalid",
        }
        return {key: value for key, value in fields.items() if value is not None}


def _add_rules(schema: dict[str, Any], model: type["Model"]) -> None:
    if model.rules:
        schema["x-kubernetes-validations"] = [rule.schema() for rule in model.rules]


class Model(BaseModel):
    """A part of the custom resource.

    Unknown fields are ignored on reading, since the installed CRD may be newer than the operator; strictness is the
    API server's. `rules` become x-kubernetes-validations of the generated schema.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        json_schema_extra=_add_rules,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    def plain(self) -> dict[str, Any]:
        """As in the custom resource: camelCase keys, plain values.

        What Kubernetes itself defines stays as it is, for the API server to judge: `model_dump` would look into it, and
        fails beyond 255 levels.
        """
        fields = type(self).model_fields.items()
        return {field.alias or name: _plain(getattr(self, name)) for name, field in fields}


def _plain(value: Any) -> Any:
    match value:
        case Model():
            return value.plain()
        case list():
            return [_plain(item) for item in value]
        case Enum():
            return value.value
        case _:
            return value


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
