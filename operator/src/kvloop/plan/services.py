"""Services: for the StatefulSets, for the router to find engines, and for clients."""

from typing import Any

from kvloop.api.labels import ENGINE_HTTP, HTTP_PORT, NAME, REVISION, ROLE, Role
from kvloop.plan import labels, names, router
from kvloop.plan.scope import Scope

_ENGINE_PORTS = [{"name": HTTP_PORT, "port": ENGINE_HTTP, "targetPort": HTTP_PORT}]


def governing(scope: Scope, role: Role) -> dict[str, Any]:
    """The headless Service that a StatefulSet must have: a DNS name for each pod, ready or not."""
    return scope.child(
        "headless_service",
        name=names.role(scope.name, role),
        component=role,
        selector=labels.role_selector(scope.name, role),
        publish_not_ready=True,
        ports=_ENGINE_PORTS,
    )


def routing(scope: Scope, role: Role, revision: str) -> dict[str, Any]:
    """The headless Service whose EndpointSlices carry role and revision to the router, and each pod's conditions."""
    return scope.child(
        "headless_service",
        name=names.routing_service(scope.name, role, revision),
        component=role,
        labels=labels.engine(scope.name, role, revision),
        selector={NAME: scope.name, ROLE: role.value, REVISION: revision},
        publish_not_ready=None,
        ports=_ENGINE_PORTS,
    )


def client(scope: Scope) -> dict[str, Any]:
    """The Service that clients use."""
    spec = scope.spec.router
    return scope.child(
        "service",
        name=names.client_service(scope.name),
        component=router.COMPONENT,
        annotations=spec.service.annotations or None,
        type=spec.service.type,
        selector=labels.component_selector(scope.name, router.COMPONENT),
        ports=[{"name": HTTP_PORT, "port": spec.port, "targetPort": HTTP_PORT}],
    )
