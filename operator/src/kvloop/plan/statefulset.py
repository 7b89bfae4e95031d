"""One StatefulSet a role."""

from typing import Any, Final

from kvloop.api.labels import TEMPLATE_HASH, Role
from kvloop.plan import labels, names, pod_template
from kvloop.plan.scope import Scope

KIND: Final = "StatefulSet"


def build(scope: Scope, role: Role, revision: str) -> dict[str, Any]:
    """The role's StatefulSet, with partition 0.

    Parallel, since no engine waits for another, and since a pod that never becomes ready must not block the fix.
    """
    child = scope.child(
        "statefulset",
        name=names.role(scope.name, role),
        component=role,
        replicas=scope.role(role).replicas,
        selector=labels.role_selector(scope.name, role),
        partition=0,
        pod_labels=labels.engine(scope.name, role, revision),
        **pod_template.values(scope, role),
    )
    child["spec"]["template"] = pod_template.finish(child["spec"]["template"], scope.role(role).pod_template)
    return child


def with_partition(child: dict[str, Any], partition: int) -> dict[str, Any]:
    """The same, but pods with a number below `partition` stay at their template."""
    if not partition:
        return child
    strategy = child["spec"]["updateStrategy"] | {"rollingUpdate": {"partition": partition}}
    return child | {"spec": child["spec"] | {"updateStrategy": strategy}}


def template_hash(child: dict[str, Any]) -> str:
    """What tells pods of this template from others."""
    found: str = child["spec"]["template"]["metadata"]["annotations"][TEMPLATE_HASH]
    return found
