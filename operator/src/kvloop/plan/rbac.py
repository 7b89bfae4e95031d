"""The router's identity, which may read EndpointSlices of its namespace and nothing else."""

from typing import Any

from kvloop.plan import names, router
from kvloop.plan.scope import Scope


def build(scope: Scope) -> list[dict[str, Any]]:
    """ServiceAccount, Role and RoleBinding of the router."""
    name = names.router(scope.name)
    return [scope.child(template, name, router.COMPONENT) for template in ("service_account", "role", "role_binding")]
