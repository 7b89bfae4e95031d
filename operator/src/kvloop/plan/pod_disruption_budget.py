"""PodDisruptionBudgets: at most one pod of a role, or one router, leaves at a time.

None for a single pod, since it would block every drain of its node.
"""

from typing import Any

from kvloop.api.labels import Role
from kvloop.plan import labels, names, router
from kvloop.plan.observed import Observed
from kvloop.plan.scope import Scope


def build(scope: Scope, observed: Observed | None) -> list[dict[str, Any]]:
    """Those that the numbers of pods call for."""
    budgets = [
        scope.child(
            "pod_disruption_budget", names.role(scope.name, role), role, selector=labels.role_selector(scope.name, role)
        )
        for role in Role
        if _replicas(scope, role, observed) >= 2
    ]
    if scope.spec.router.replicas >= 2:
        selector = labels.component_selector(scope.name, router.COMPONENT)
        budgets.append(
            scope.child("pod_disruption_budget", names.router(scope.name), router.COMPONENT, selector=selector)
        )
    return budgets


def _replicas(scope: Scope, role: Role, observed: Observed | None) -> int:
    """As the spec says, or else what an autoscaler has set the StatefulSet to."""
    wanted = scope.role(role).replicas
    if wanted is not None:
        return wanted
    workload = observed.workload("StatefulSet", names.role(scope.name, role)) if observed else None
    return workload.replicas if workload else 0
