"""PodDisruptionBudgets: at most one pod of a role, or one router, leaves at a time.

None for a single pod, since it would block every drain of its node.
"""

from typing import Any, Final

from kvloop.api.labels import Role
from kvloop.plan import labels, names, router
from kvloop.plan.observed import Observed
from kvloop.plan.scope import Scope

_SEVERAL: Final = 2


def build(scope: Scope) -> list[dict[str, Any]]:
    """Those that the numbers of pods in the spec call for."""
    budgets = [_of_role(scope, role) for role in Role if (scope.role(role).replicas or 0) >= _SEVERAL]
    if scope.spec.router.replicas >= _SEVERAL:
        selector = labels.component_selector(scope.name, router.COMPONENT)
        budgets.append(
            scope.child("pod_disruption_budget", names.router(scope.name), router.COMPONENT, selector=selector)
        )
    return budgets


def build_scaled(scope: Scope, observed: Observed | None) -> list[dict[str, Any]]:
    """Those of roles whose number of pods an autoscaler has set."""
    return [
        _of_role(scope, role)
        for role in Role
        if scope.role(role).replicas is None and _scaled_to(scope, role, observed) >= _SEVERAL
    ]


def _of_role(scope: Scope, role: Role) -> dict[str, Any]:
    selector = labels.role_selector(scope.name, role)
    return scope.child("pod_disruption_budget", names.role(scope.name, role), role, selector=selector)


def _scaled_to(scope: Scope, role: Role, observed: Observed | None) -> int:
    workload = observed.workload("StatefulSet", names.role(scope.name, role)) if observed else None
    return workload.replicas if workload else 0
