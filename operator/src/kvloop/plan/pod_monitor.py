"""PodMonitors of the Prometheus operator."""

from typing import Any

from kvloop.api.labels import ADMIN_PORT, HTTP_PORT, NAME, REVISION, ROLE
from kvloop.api.v1alpha1.resource import PodMonitorMode
from kvloop.plan import labels, names, router
from kvloop.plan.scope import Scope


def build(scope: Scope) -> list[dict[str, Any]]:
    """One for engines, one for routers, since they have their metrics on different ports."""
    mode = scope.spec.monitoring.pod_monitor
    wanted = scope.config.api_available.pod_monitor if mode is PodMonitorMode.AUTO else mode is PodMonitorMode.ENABLED
    if not wanted:
        return []
    routers = {"matchLabels": labels.component_selector(scope.name, router.COMPONENT)}
    return [
        scope.child(
            "pod_monitor",
            names.engines(scope.name),
            "engine",
            selector=labels.any_engine(scope.name),
            target_labels=[NAME, ROLE, REVISION],
            port=HTTP_PORT,
        ),
        scope.child(
            "pod_monitor",
            names.router(scope.name),
            router.COMPONENT,
            selector=routers,
            target_labels=[NAME],
            port=ADMIN_PORT,
        ),
    ]
