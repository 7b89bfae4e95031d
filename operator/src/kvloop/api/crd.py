"""From the models to the CustomResourceDefinition.

Pydantic speaks JSON Schema 2020-12; the API server wants a structural schema: no references, no `null` branches, no
titles, one type a node. A nested model's default is emitted as `{}`, so that each default stands once, at its field,
and the server fills in the rest.
"""

from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from kvloop.api.flags import FLAGS
from kvloop.api.labels import GROUP, KIND, PLURAL, VERSION, Condition
from kvloop.api.v1alpha1 import DisaggregatedInference, Spec, Status

SHORT_NAME: Final = "di"
CATEGORY: Final = "kvloop"
MAX_BYTES: Final = 256 * 1024
"""Longest annotation that Kubernetes accepts; client-side `kubectl apply` stores the whole object in one."""

_INITIAL_STATUS: Final = {"observedGeneration": -1}
"""Present from the create on, so that kstatus (Flux, kpt) does not take an object nobody looked at yet for ready."""

_ORDER: Final = ("description", "type", "format", "enum", "pattern", "default")
_LAST: Final = ("properties", "required", "items", "additionalProperties", "x-kubernetes-validations")
_DROPPED: Final = ("title", "$defs")


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """Schema of `model` as `openAPIV3Schema` wants it."""
    schema = model.model_json_schema(by_alias=True, schema_generator=_AsDeclared)
    return _convert(schema, schema.get("$defs", {}))


class _AsDeclared(GenerateJsonSchema):
    """Keys in the order of the models, not of the alphabet."""

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:  # noqa: ARG002 (Pydantic's)
        return value


def without_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema with no default in it or below it."""
    kept = {key: value for key, value in schema.items() if key != "default"}
    for key in ("items", "additionalProperties"):
        if key in kept:
            kept[key] = without_defaults(kept[key])
    if "properties" in kept:
        kept["properties"] = {name: without_defaults(value) for name, value in kept["properties"].items()}
    return kept


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition, in Kubernetes' spelling."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": _columns(),
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def _root() -> dict[str, Any]:
    root = structural(DisaggregatedInference)
    status = without_defaults(structural(Status))
    root["properties"] = {
        "apiVersion": {"description": f"{GROUP}/{VERSION}.", "type": "string"},
        "kind": {"description": f"{KIND}.", "type": "string"},
        "metadata": {"type": "object"},  # the server's own; it allows no description here
        "spec": _with_flags(structural(Spec)),
        "status": _ordered({**status, "default": _INITIAL_STATUS}),
    }
    root["required"] = ["spec"]
    return root


def _with_flags(spec: dict[str, Any]) -> dict[str, Any]:
    """`spec` with the vLLM setting of each field told in its description."""
    for flag in FLAGS:
        for path in {flag.path.format(role=role) for role in flag.roles}:
            node = spec
            for step in path.split("."):
                node = node["properties"][step]
            node["description"] += f" {flag.sentence()}"
    return spec


def _convert(node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """One node of Pydantic's schema, and all below it, in structural form."""
    node = _resolve(node, defs)
    if isinstance(node.get("additionalProperties"), bool):
        del node["additionalProperties"]
    for key in ("items", "additionalProperties"):
        if key in node:
            node[key] = _convert(node[key], defs)
    required = node.get("required", [])
    if properties := node.get("properties"):
        node["properties"] = {
            name: _property(value, defs, optional=name not in required) for name, value in properties.items()
        }
    return _ordered(node)


def _property(node: dict[str, Any], defs: dict[str, Any], *, optional: bool) -> dict[str, Any]:
    converted = _convert(node, defs)
    if optional and "$ref" in node and "properties" in converted:
        converted["default"] = {}  # a nested model that is always there: its fields hold the defaults
    return _ordered(converted)


def _resolve(node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """`node` with its reference inlined, `X | None` as plain X, and without what a structural schema must not have."""
    node = dict(node)
    if "anyOf" in node and "x-kubernetes-int-or-string" not in node:
        branches = [branch for branch in node.pop("anyOf") if branch.get("type") != "null"]
        if len(branches) != 1:
            raise ValueError(f"a union of {len(branches)} types is not structural: {branches}")
        node = {**_resolve(branches[0], defs), **node}
    if "$ref" in node:
        target = defs[node.pop("$ref").rsplit("/", 1)[-1]]
        node = {**_resolve(target, defs), **node}
    if "default" in node and node["default"] is None:
        del node["default"]
    for key in _DROPPED:
        node.pop(key, None)
    return node


def _ordered(node: dict[str, Any]) -> dict[str, Any]:
    """The same node in the order in which people read it."""
    middle = [key for key in node if key not in _ORDER and key not in _LAST]
    return {key: node[key] for key in (*_ORDER, *middle, *_LAST) if key in node}


def _columns() -> list[dict[str, Any]]:
    def condition(field: str) -> str:
        return f'.status.conditions[?(@.type=="{Condition.READY}")].{field}'

    return [
        _column("Ready", condition("status"), "All that is wanted is there, updated and ready."),
        _column("Reason", condition("reason"), "Why it is, or is not, ready."),
        _column("Prefill", ".status.prefill.summary", "Prefill pods, ready/desired."),
        _column("Decode", ".status.decode.summary", "Decode pods, ready/desired."),
        _column("Router", ".status.router.summary", "Router pods, ready/desired."),
        _column("Reuse", ".status.reuse.hitPercent", "Reused tokens per prompt token of follow-ups."),
        {**_column("URL", ".status.url", "Where clients reach the router."), "priority": 1},
        {**_column("Age", ".metadata.creationTimestamp", "Since the resource was made."), "type": "date"},
    ]


def _column(name: str, path: str, description: str) -> dict[str, Any]:
    return {"name": name, "type": "string", "description": description, "jsonPath": path}
