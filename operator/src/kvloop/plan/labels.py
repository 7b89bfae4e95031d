"""Labels of children and pods, and the selectors that find them again."""

from kvloop.api.labels import APP_COMPONENT, APP_NAME, MANAGED_BY, MANAGED_BY_VALUE, NAME, REVISION, ROLE, Role


def common(name: str, component: str) -> dict[str, str]:
    """Labels of every child and pod of the resource `name`."""
    return {APP_NAME: MANAGED_BY_VALUE, MANAGED_BY: MANAGED_BY_VALUE, APP_COMPONENT: component, NAME: name}


def engine(name: str, role: Role, revision: str) -> dict[str, str]:
    """Labels of engine pods and routing Services."""
    return common(name, role) | {ROLE: role.value, REVISION: revision}


def role_selector(name: str, role: Role) -> dict[str, str]:
    """Finds the engine pods of a role, of any revision. Immutable in a StatefulSet: never change it."""
    return {NAME: name, ROLE: role.value}


def component_selector(name: str, component: str) -> dict[str, str]:
    """Finds the pods of a component that is no engine. Immutable in a Deployment: never change it."""
    return {NAME: name, APP_COMPONENT: component}


def any_engine(name: str) -> dict[str, object]:
    """Label selector of the engine pods of both roles."""
    return {"matchLabels": {NAME: name}, "matchExpressions": [{"key": ROLE, "operator": "Exists"}]}
