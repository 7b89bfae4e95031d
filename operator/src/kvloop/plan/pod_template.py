"""The pods of an engine."""

from typing import Any

from kvloop.api.labels import (
    ENGINE_CONTAINER,
    ENGINE_HTTP,
    HTTP_PORT,
    NIXL_SIDE_CHANNEL,
    SIDE_CHANNEL_PORT,
    TEMPLATE_HASH,
    Role,
)
from kvloop.plan import claims, config_maps, engine_args, env, model_source, names, placement, resources
from kvloop.plan.hashing import digest
from kvloop.plan.merge import merge
from kvloop.plan.scope import Scope

PRE_STOP_SECONDS = 15
"""From a pod's end in EndpointSlices to SIGTERM. vLLM still accepts requests while it shuts down, but mostly does not
answer them, so every router must have looked away before; they need a second, a busy API server several."""

GRACE_MARGIN_SECONDS = 15
"""Beyond the shutdown timeout, for vLLM to end its processes."""

STARTUP_PERIOD_SECONDS = 5
STARTUP_BUDGET_SECONDS = 7200
"""Weights may take an hour to load; until then only progressDeadlineSeconds speaks, and nothing is killed."""


def values(scope: Scope, role: Role) -> dict[str, Any]:
    """What the template of the StatefulSet needs to know of its pods."""
    engine, source = scope.spec.engine, model_source.of(scope, role)
    return {
        "container": ENGINE_CONTAINER,
        "image": engine.image,
        "image_pull_policy": engine.image_pull_policy,
        "image_pull_secrets": scope.pull_secrets,
        "service_account": engine.service_account_name,
        "priority_class": scope.spec.placement.priority_class_name,
        "node_selector": placement.node_selector(scope),
        "tolerations": placement.tolerations(scope, role),
        "affinity": placement.affinity(scope, role),
        "grace_seconds": PRE_STOP_SECONDS + engine.shutdown_timeout_seconds + GRACE_MARGIN_SECONDS,
        "pre_stop_seconds": PRE_STOP_SECONDS,
        "startup_period_seconds": STARTUP_PERIOD_SECONDS,
        "startup_failures": STARTUP_BUDGET_SECONDS // STARTUP_PERIOD_SECONDS,
        "health": {"path": "/health", "port": HTTP_PORT},
        "resource_claims": _resource_claims(scope, role),
        "command": engine_args.COMMAND,
        "args": engine_args.arguments(scope, role),
        "env": env.environment(scope, role),
        "ports": [
            {"name": HTTP_PORT, "containerPort": ENGINE_HTTP},
            {"name": SIDE_CHANNEL_PORT, "containerPort": NIXL_SIDE_CHANNEL},
        ],
        "resources": resources.of(scope, role) or None,
        "shared_memory": resources.shared_memory(scope, role),
        "security_context": security_context(scope, role),
        "cache_folder": env.CACHE_FOLDER,
        "plugin_folder": env.PLUGIN_FOLDER,
        "plugin_config_map": names.engine_plugin(scope.name),
        "plugin_items": config_maps.plugin_items(scope.config),
        "model_mounts": source.mounts,
        "model_volumes": source.volumes,
    }


def security_context(scope: Scope, role: Role) -> dict[str, Any]:
    """As restricted as stock vLLM images allow: they run as root and write to their own file system.

    EFA pins memory, for which IPC_LOCK is needed, and Kubernetes gives added capabilities to UID 0 only.
    """
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    context: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": capabilities}
    if scope.resolved.efa[role]:
        capabilities["add"] = ["IPC_LOCK"]
        context["runAsUser"] = 0
    return context


def finish(template: dict[str, Any], user: dict[str, Any]) -> dict[str, Any]:
    """The generated template with the user's over it, and the hash that tells its pods from others.

    Labels that the operator selects by stay what they are.
    """
    merged = merge(template, user)
    merged = merge(merged, {"metadata": {"labels": template["metadata"]["labels"]}})
    return merge(merged, {"metadata": {"annotations": {TEMPLATE_HASH: digest(merged)}}})


def _resource_claims(scope: Scope, role: Role) -> list[dict[str, str]] | None:
    if not claims.uses_claim(scope):
        return None
    return [{"name": claims.CLAIM, "resourceClaimTemplateName": claims.template_name(scope, role)}]
