"""NetworkPolicies: who may reach the pods.

An engine obeys any KV handle that it is sent, so its HTTP port is for the router, and for those that read metrics.
EFA traffic itself bypasses the kernel and with it every policy: the security group bounds it.
"""

from typing import Any

from kvloop.api.labels import ADMIN_PORT, APP_COMPONENT, APP_NAME, HTTP_PORT, MANAGED_BY_VALUE
from kvloop.plan import labels, names, router, valkey
from kvloop.plan.scope import Scope

NAMESPACE_NAME = "kubernetes.io/metadata.name"


def build(scope: Scope) -> list[dict[str, Any]]:
    """Policies for engines, routers and, if there is one, the managed Valkey."""
    routers = {"podSelector": {"matchLabels": labels.component_selector(scope.name, router.COMPONENT)}}
    engines = {"podSelector": labels.any_engine(scope.name)}
    policies = [
        _policy(
            scope,
            names.engines(scope.name),
            "engine",
            engines,
            [_allow([routers, *_watchers(scope)], HTTP_PORT), {"from": [engines]}],
        ),
        _policy(
            scope,
            names.router(scope.name),
            router.COMPONENT,
            routers,
            [{"ports": [{"port": HTTP_PORT}]}, _allow(_watchers(scope), ADMIN_PORT)],
        ),
    ]
    if valkey.managed(scope):
        pods = {"podSelector": {"matchLabels": labels.component_selector(scope.name, valkey.COMPONENT)}}
        ingress = [_allow([routers], valkey.PORT_NAME)]
        policies.append(_policy(scope, names.valkey(scope.name), valkey.COMPONENT, pods, ingress))
    return policies


def _policy(
    scope: Scope, name: str, component: str, pods: dict[str, Any], ingress: list[dict[str, Any]]
) -> dict[str, Any]:
    return scope.child("network_policy", name, component, pod_selector=pods["podSelector"], ingress=ingress)


def _allow(peers: list[dict[str, Any]], port: str) -> dict[str, Any]:
    return {"from": peers, "ports": [{"port": port}]}


def _watchers(scope: Scope) -> list[dict[str, Any]]:
    """The operator, and Prometheus where the operator's settings say its namespace."""
    operator = {
        "namespaceSelector": {"matchLabels": {NAMESPACE_NAME: scope.config.operator_namespace}},
        "podSelector": {"matchLabels": {APP_NAME: MANAGED_BY_VALUE, APP_COMPONENT: "operator"}},
    }
    return [
        operator,
        *(
            {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: namespace}}}
            for namespace in scope.config.scrape_namespaces
        ),
    ]
