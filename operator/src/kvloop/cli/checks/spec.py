"""A custom resource on paper: its rules, and what the versions and names in it promise. Pure."""

import re
from collections.abc import Iterator
from typing import Final

from kvloop.api.flags import EXPIRY_SINCE, FLAGS
from kvloop.api.instances import INSTANCE_TYPES
from kvloop.api.labels import Role
from kvloop.api.v1alpha1.transfer import Fabric
from kvloop.cli.checks.finding import Finding, fail, ok, warn
from kvloop.plan.resolve import NEWEST, vllm_version
from kvloop.plan.scope import Scope

_IMAGE: Final = re.compile(
    r"(?P<name>[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*)(:(?P<tag>[\w][\w.-]{0,127}))?"
    r"(@(?P<digest>sha256:[0-9a-f]{64}))?",
)


def spec(scope: Scope) -> Iterator[Finding]:
    """All that can be said without a cluster of a resource that its rules allow."""
    yield version(scope)
    yield from image(scope)
    yield instance_type(scope)
    yield weights(scope)


def version(scope: Scope) -> Finding:
    """Every option of the spec is known to the version of vLLM."""
    engine, resolved = scope.spec.engine, scope.resolved
    _, told = vllm_version(engine.version, engine.image)
    missing = [flag.name for flag in FLAGS if resolved.version < flag.since]
    if "assumed" in told:
        return warn("vLLM", "the image does not tell its version", "set engine.version to that of the image")
    if missing:
        return warn("vLLM", f"{told} does not know {', '.join(missing)}, and uses its own values", "use a later vLLM")
    if resolved.version > NEWEST:
        return warn(
            "vLLM", f"{told} is newer than this kvloop was tried with", "look whether the guard is active, once it runs"
        )
    if not scope.spec.transfer.bidirectional:
        return warn(
            "vLLM", "transfer.bidirectional is false: nothing comes back", "set it to true, unless that is meant"
        )
    if resolved.version < EXPIRY_SINCE:
        reason = f"{told} does not tell when a lease ends, so the guard refuses its handles: nothing is reused"
        return warn("vLLM", reason, f"use vLLM {EXPIRY_SINCE[0]}.{EXPIRY_SINCE[1]} or later")
    return ok("vLLM", told)


def image(scope: Scope) -> Iterator[Finding]:
    """The names of images can be pulled by, and mean the same image tomorrow."""
    for title, name in (("Engine image", scope.spec.engine.image), ("Router image", scope.resolved.router_image)):
        found = _IMAGE.fullmatch(name)
        if not found:
            yield fail(title, f"{name} is no image name", "write it as registry/repository:tag or @sha256:digest")
        elif found["digest"]:
            yield ok(title, f"{name}, by its digest")
        elif found["tag"] in {None, "latest"}:
            yield warn(title, f"{name} means another image from day to day", "name a version, or better a digest")
        else:
            yield ok(title, f"{name}, by its tag")


def instance_type(scope: Scope) -> Finding:
    """What is known of the nodes' type."""
    name, efa = scope.spec.placement.instance_type, scope.spec.transfer.fabric is Fabric.EFA
    if name is None:
        if efa and scope.spec.transfer.efa.devices_per_pod is None:
            return warn(
                "Instance type", "is not given, so each pod asks for one EFA device", "set placement.instanceType"
            )
        return ok("Instance type", "any")
    known = INSTANCE_TYPES.get(name)
    if known is None:
        return warn(
            "Instance type", f"{name} is not in kvloop's table", "set transfer.efa.devicesPerPod, and resources"
        )
    devices = ", ".join(f"{role} {scope.resolved.gpus[role]}+{scope.resolved.efa[role]}" for role in Role)
    return ok("Instance type", f"{name}: {known.gpus} GPUs, {known.efa} EFA devices; GPUs and EFA of a pod: {devices}")


def weights(scope: Scope) -> Finding:
    """Prefill and decode load the same weights."""
    hub = scope.spec.model.source.hugging_face
    if hub and not re.fullmatch(r"[0-9a-f]{40}", hub.revision or ""):
        return warn(
            "Weights",
            f"{hub.repository} may change between two starts, and engines with other weights exchange wrong KV",
            "set model.source.huggingFace.revision to a commit",
        )
    return ok("Weights", "the same for every engine")
