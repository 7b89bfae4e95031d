"""What of a pod's own API stands in the spec: resources, and a pod template that is merged, not expanded.

Only what rules look at is declared; everything else is kept as it is (a whole PodTemplateSpec would make the CRD too
big for `kubectl apply`) and judged by the API server when the StatefulSet is applied.
"""

from typing import Annotated, Any, Final

from pydantic import Field

from kvloop.api.labels import APP_COMPONENT, APP_NAME, ENGINE_CONTAINER, GROUP, MANAGED_BY
from kvloop.api.v1alpha1.base import PRESERVE, Rule
from kvloop.api.v1alpha1.owned import OWNED_ENV, cel_list

EFA_RESOURCE: Final = "vpc.amazonaws.com/efa"
HUGEPAGES_RESOURCE: Final = "hugepages-2Mi"


def _object(
    description: str, properties: dict[str, Any], *, required: tuple[str, ...] = (), rules: tuple[Rule, ...] = ()
) -> dict[str, Any]:
    """A declared part of an object whose other fields are kept."""
    node: dict[str, Any] = {"description": description, "type": "object", **PRESERVE, "properties": properties}
    if required:
        node["required"] = list(required)
    if rules:
        node["x-kubernetes-validations"] = [rule.schema() for rule in rules]
    return node


def _list(description: str, maximum: int, items: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": description,
        "type": "array",
        "maxItems": maximum,
        "x-kubernetes-list-type": "atomic",
        "items": items,
    }


def _string(description: str, maximum: int) -> dict[str, Any]:
    return {"description": description, "type": "string", "maxLength": maximum}


def _quantities(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei|e[0-9]+)?$",
        },
    }


Resources = Annotated[
    dict[str, Any],
    Field(
        json_schema_extra={
            "properties": {
                "requests": _quantities("Least amounts, which the scheduler reserves."),
                "limits": _quantities("Most amounts."),
            }
        }
    ),
]
"""Resource requests and limits, as in a pod's container."""


def owned_resource_rule(name: str, instead: str) -> Rule:
    """The rule that resource `name` (CEL), whose field is `instead`, stands in neither requests nor limits."""
    in_neither = " && ".join(
        f"(!has(self.resources.{part}) || !({name} in self.resources.{part}))" for part in ("requests", "limits")
    )
    return Rule(
        f"!has(self.resources) || ({in_neither})",
        f"resources must not hold what {instead} sets: remove it there",
        field_path=".resources",
    )


_NOT_ENGINE: Final = f"self.name != '{ENGINE_CONTAINER}'"
_METADATA = _object(
    "Metadata of the pods.",
    {
        "labels": {
            "description": "Further labels.",
            "type": "object",
            "maxProperties": 64,
            "additionalProperties": {"type": "string", "maxLength": 63},
        }
    },
    rules=(
        Rule(
            f"!has(self.labels) || self.labels.all(k, !k.startsWith('{GROUP}/')"
            f" && !(k in {cel_list((APP_NAME, APP_COMPONENT, MANAGED_BY))}))",
            f"labels of {GROUP}/ and app.kubernetes.io/ select the pods and belong to the operator: remove them",
            field_path=".labels",
        ),
    ),
)
_VARIABLE = _object("A variable.", {"name": _string("Name of the variable.", 256)}, required=("name",))
_CONTAINER = _object(
    f"A container; {ENGINE_CONTAINER} is the engine, others are sidecars.",
    {
        "name": _string("Name of the container.", 63),
        "image": _string("Image; the engine's is spec.engine.image.", 1024),
        "command": _list("Entry point; not for the engine.", 64, {"type": "string"}),
        "args": _list("Arguments; the engine's are spec.engine.args and the role's args.", 256, {"type": "string"}),
        "resources": _object("Requests and limits; the engine's are the role's resources.", {}),
        "env": _list("Environment.", 64, _VARIABLE),
    },
    required=("name",),
    rules=(
        Rule(
            f"{_NOT_ENGINE} || !(has(self.image) || has(self.command) || has(self.args) || has(self.resources))",
            f"image, command, args and resources of the container {ENGINE_CONTAINER} come from spec.engine and from the"
            " role: set them there, and remove them from podTemplate",
        ),
        Rule(
            f"{_NOT_ENGINE} || !has(self.env) || self.env.all(e, !(e.name in {cel_list(tuple(OWNED_ENV))}))",
            f"the operator owns {', '.join(OWNED_ENV)}: remove them from env of the container {ENGINE_CONTAINER}",
            field_path=".env",
        ),
    ),
)
_VOLUME = _object(
    "A volume.",
    {"hostPath": _object("A path of the node.", {"path": _string("The path.", 4096)}, required=("path",))},
    rules=(
        # On B200 it shows the pod foreign devices and breaks EFA: https://github.com/aws-samples/aws-do-eks/pull/63
        Rule(
            "!has(self.hostPath) || !self.hostPath.path.matches('^/+dev(/+infiniband.*|/*)$')",
            "remove the hostPath /dev/infiniband: transfer.efa gives the pods their EFA devices",
            field_path=".hostPath",
        ),
    ),
)
_SPEC = _object(
    "Spec of the pods.",
    {
        "hostNetwork": {"description": "Not supported.", "type": "boolean"},
        "terminationGracePeriodSeconds": {"description": "Not to be set.", "type": "integer"},
        "containers": _list("Sidecars, and additions to the engine.", 16, _CONTAINER),
        "volumes": _list("Further volumes.", 32, _VOLUME),
    },
    rules=(
        Rule(
            "!has(self.hostNetwork) || !self.hostNetwork",
            "remove hostNetwork: engines of one node would take each other's ports, and EFA does not need it",
            field_path=".hostNetwork",
        ),
        Rule(
            "!has(self.terminationGracePeriodSeconds)",
            "remove terminationGracePeriodSeconds: it follows from engine.shutdownTimeoutSeconds",
            field_path=".terminationGracePeriodSeconds",
        ),
    ),
)

PodTemplate = Annotated[
    dict[str, Any], Field(json_schema_extra={**PRESERVE, "properties": {"metadata": _METADATA, "spec": _SPEC}})
]
"""Part of a pod template, merged into the generated one."""
