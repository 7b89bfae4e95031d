"""The managed Valkey: one pod, in memory only, since what it holds are hints that cost a recomputation when lost."""

from typing import Any, Final

from kvloop.plan import labels, names
from kvloop.plan.scope import Scope

COMPONENT: Final = "valkey"
PORT: Final = 6379
PORT_NAME: Final = "valkey"


def managed(scope: Scope) -> bool:
    """Whether the resource asks for it."""
    store = scope.spec.router.store
    return bool(store.valkey and store.valkey.managed)


def url(scope: Scope) -> str:
    """Where the router finds it."""
    return f"redis://{names.valkey(scope.name)}.{scope.namespace}.svc.{scope.config.cluster_domain}:{PORT}/0"


def build(scope: Scope) -> list[dict[str, Any]]:
    """Service and Deployment; nothing when it is not asked for."""
    if not managed(scope):
        return []
    name, selector = names.valkey(scope.name), labels.component_selector(scope.name, COMPONENT)
    ports = [{"name": PORT_NAME, "port": PORT, "targetPort": PORT_NAME}]
    service = scope.child(
        "service", name, COMPONENT, annotations=None, type="ClusterIP", selector=selector, ports=ports
    )
    deployment = scope.child(
        "valkey_deployment",
        name,
        COMPONENT,
        selector=selector,
        pod_labels=labels.common(scope.name, COMPONENT),
        image=scope.config.valkey_image,
        image_pull_secrets=scope.pull_secrets,
        args=["--save", "", "--appendonly", "no", "--maxmemory", "256mb", "--maxmemory-policy", "volatile-ttl"]
        + (["--requirepass", "$(PASSWORD)"] if _password(scope) else []),
        env=_password(scope),
        ports=[{"name": PORT_NAME, "containerPort": PORT}],
        port=PORT_NAME,
    )
    return [service, deployment]


def _password(scope: Scope) -> list[dict[str, Any]] | None:
    store = scope.spec.router.store.valkey
    if not store or not store.password_secret_ref:
        return None
    ref = store.password_secret_ref
    return [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}]
