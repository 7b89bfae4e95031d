"""One StatefulSet a role."""

from typing import Any

from kvloop.api.labels import Role
from kvloop.plan import labels, names, pod_template
from kvloop.plan.scope import Scope


def build(scope: Scope, role: Role, revision: str, partition: int) -> dict[str, Any]:
    """The role's StatefulSet; pods with a number below `partition` keep their template.

    Parallel, since no engine waits for another, and since a pod that never becomes ready must not block the fix.
    """
    child = scope.child(
        "statefulset",
        name=names.role(scope.name, role),
        component=role,
        replicas=scope.role(role).replicas,
        selector=labels.role_selector(scope.name, role),
        partition=partition,
        pod_labels=labels.engine(scope.name, role, revision),
        **pod_template.values(scope, role),
    )
    child["spec"]["template"] = pod_template.finish(child["spec"]["template"], scope.role(role).pod_template)
    return child
