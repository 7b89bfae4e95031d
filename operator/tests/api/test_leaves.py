"""No field of the spec is half-wired: each belongs to one place that reads it, and a change of it changes the plan."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import kvloop
from e2e import crs
from kvloop.api.flags import FLAGS
from kvloop.api.labels import Role
from kvloop.api.v1alpha1 import parse
from kvloop.plan.config import PlanConfig
from kvloop.plan.desired import plan

SOURCES: Final = Path(kvloop.__file__).parent
SPEC: Final = crs.schema()["properties"]["spec"]

BUILDERS: Final = {
    "plan.model_source": (
        "model.source.huggingFace.repository",
        "model.source.huggingFace.revision",
        "model.source.s3",
        "model.source.volume",
        "model.source.path",
    ),
    "plan.env": ("model.source.huggingFace.tokenSecretRef", "engine.env", "{role}.env", "transfer.efa.deviceRDMA"),
    "plan.engine_args": ("engine.args", "{role}.args"),
    "plan.pod_template": (
        "engine.image",
        "engine.imagePullPolicy",
        "engine.imagePullSecrets",
        "engine.serviceAccountName",
        "placement.priorityClassName",
    ),
    "plan.statefulset": ("{role}.replicas", "{role}.podTemplate"),
    "plan.resolve": ("engine.version", "{role}.gpus", "transfer.efa.devicesPerPod", "router.image"),
    "plan.resources": ("{role}.gpuResource", "{role}.resources", "transfer.efa.hugepages2Mi"),
    "plan.claims": ("transfer.efa.mechanism",),
    "plan.placement": (
        "placement.instanceType",
        "placement.zone",
        "placement.sameZone",
        "placement.nodeSelector",
        "placement.tolerations",
        "placement.placementGroup",
        "placement.capacityReservation",
    ),
    "plan.router": (
        "router.replicas",
        "router.resources",
        "router.env",
        "router.apiKeysSecretRef",
        "router.store.valkey.passwordSecretRef",
    ),
    "plan.valkey": ("router.store.valkey.managed",),
    "plan.services": ("router.port", "router.service"),
    "plan.sides": ("{role}.maxUnavailable",),
    "plan.pod_monitor": ("monitoring.podMonitor",),
}
"""Fields by the builder that turns them into children; those that are one flag of vLLM stand in `kvloop.api.flags`."""

CONTRACT: Final = (
    "router.store.memory",
    "router.store.valkey.url",
    "router.holdoutPercent",
    "router.leaseSeconds",
    "router.maxPinnedPercent",
    "router.whenNoPrefill",
    "router.tenantHeader",
    "router.deadlines",
)
"""Fields that the router reads from its configuration."""

OPERATOR: Final = {"plan.desired": ("rollout.paused",), "plan.status": ("rollout.progressDeadlineSeconds",)}
"""Fields that control the operator itself; they show in no child."""

UNPLANNED: Final = {
    "prefill.maxUnavailable",
    "decode.maxUnavailable",
    *(path for paths in OPERATOR.values() for path in paths),
}
"""Fields that matter only once there are pods."""

_VALKEY: Final[crs.Body] = {
    "router": {
        "store": {"valkey": {"url": "redis://valkey", "passwordSecretRef": {"name": "valkey", "key": "password"}}}
    }
}


def leaves(node: crs.Body, path: str = "") -> Iterator[tuple[str, crs.Body]]:
    """Path and schema of every field below which nothing more is declared, or nothing more is ours."""
    for name, child in node["properties"].items():
        if child.get("properties") and not child.get("x-kubernetes-preserve-unknown-fields"):
            yield from leaves(child, f"{path}{name}.")
        else:
            yield path + name, child


def _expanded(paths: tuple[str, ...]) -> set[str]:
    return {path.format(role=role) for path in paths for role in Role}


OWNERS: Final = {
    "api.flags": {flag.path.format(role=role) for flag in FLAGS for role in flag.roles},
    "api.contract": _expanded(CONTRACT),
    **{module: _expanded(paths) for module, paths in (BUILDERS | OPERATOR).items()},
}
CLAIMS: Final = [(owner, path) for owner, paths in OWNERS.items() for path in sorted(paths)]
LEAVES: Final = dict(leaves(SPEC))


@pytest.mark.parametrize("leaf", LEAVES)
def test_each_leaf_has_one_owner(leaf: str) -> None:
    owners = [owner for owner, paths in OWNERS.items() for path in paths if leaf == path or leaf.startswith(f"{path}.")]
    assert len(owners) == 1, owners


@pytest.mark.parametrize(("owner", "path"), CLAIMS)
def test_each_claim_is_of_fields_that_exist(owner: str, path: str) -> None:
    assert any(leaf == path or leaf.startswith(f"{path}.") for leaf in LEAVES), owner


def _plain(name: str) -> str:
    """A name in whatever spelling: decoderKVBlocksTTLSeconds, decoder_kv_blocks_ttl_seconds."""
    return name.replace("_", "").lower()


@pytest.mark.parametrize(("owner", "path"), CLAIMS)
def test_the_owner_reads_the_field(owner: str, path: str) -> None:
    folder = SOURCES / owner.replace(".", "/")
    files = [folder.with_suffix(".py")] if folder.with_suffix(".py").exists() else sorted(folder.glob("*.py"))
    tree = ast.parse("\n".join(file.read_text(encoding="utf-8") for file in files))
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    declared = {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    texts = {step for node in ast.walk(tree) if isinstance(node, ast.Constant) for step in str(node.value).split(".")}
    assert _plain(path.rsplit(".", 1)[-1]) in {_plain(name) for name in attributes | declared | texts}


def _source(source: crs.Body) -> crs.Body:
    return {"model": {"source": {"huggingFace": None, **source}}}


CONTEXT: Final[dict[str, crs.Body]] = {
    "decode.prefixCaching": {"decode": {"prefixCaching": False}},
    "model.source.s3.uri": _source({"s3": {"uri": "s3://weights"}}),
    "model.source.volume.claimName": _source({"volume": {"claimName": "weights"}}),
    "model.source.volume.path": _source({"volume": {"claimName": "weights"}}),
    "model.source.path": _source({"path": "/models/m"}),
    "placement.sameZone": {"placement": {"zone": None}},
    "router.store.valkey.passwordSecretRef.name": _VALKEY,
    "router.store.valkey.passwordSecretRef.key": _VALKEY,
    "router.store.valkey.url": _VALKEY,
}
"""What else must be set for a field to matter."""

VALUES: Final = {
    "engine.version": "0.20.2",
    "model.source.path": "/models/other",
    "model.source.s3.uri": "s3://other",
    "placement.instanceType": "p5.48xlarge",
    "placement.zone": "us-east-1a",
    "router.store.valkey.url": "redis://other",
    "transfer.efa.deviceRDMA": False,
    "transfer.efa.hugepages2Mi": "4Mi",
    "{role}.gpuResource": "amd.com/gpu",
    "{role}.prefixCaching": None,
    "placement.tolerations": [{"key": "other"}],
    "monitoring.podMonitor": "Enabled",
    "{role}.podTemplate": {"metadata": {"labels": {"other": "other"}}},
    "{role}.resources.requests": {"cpu": 1},
    "{role}.resources.limits": {"cpu": 1},
    "engine.env": [{"name": "OTHER", "value": "other"}],
    "{role}.env": [{"name": "OTHER", "value": "other"}],
}
"""Values of fields for which any other value would not do."""


@pytest.mark.parametrize("leaf", sorted(LEAVES.keys() - UNPLANNED))
def test_a_change_of_the_field_changes_what_is_planned(leaf: str) -> None:
    before = crs.merged(crs.valid()[0].body, {"spec": CONTEXT.get(leaf, {})})
    key = re.sub("^(prefill|decode)", "{role}", leaf)
    change = VALUES[key] if key in VALUES else _other(LEAVES[leaf])
    for step in reversed(leaf.split(".")):
        change = {step: change}
    after = crs.merged(before, {"spec": change})
    assert _planned(before) != _planned(after)


def _planned(body: crs.Body) -> Any:
    return plan(parse(body), None, PlanConfig(router_image="registry.example/router:1")).children


def _other(node: crs.Body) -> Any:
    """A value that the field does not have by default."""
    if "enum" in node:
        return next(value for value in reversed(node["enum"]) if value != node.get("default"))
    if "items" in node:
        return [{"name": "other"} if "properties" in node["items"] else "other"]
    if "additionalProperties" in node:
        return {"other": "other"}
    values = {"boolean": not node.get("default", False), "integer": node.get("maximum"), "string": "other"}
    return values[node["type"]]
