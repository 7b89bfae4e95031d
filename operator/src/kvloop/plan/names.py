"""Names of the children. With a resource's name of at most 40 characters, each is a DNS label of at most 63."""

from kvloop.api.labels import Role


def role(name: str, of: Role) -> str:
    """StatefulSet of a role, its governing Service and its PodDisruptionBudget."""
    return f"{name}-{of}"


def pod(name: str, of: Role, number: int) -> str:
    """Pod of a StatefulSet."""
    return f"{role(name, of)}-{number}"


def routing_service(name: str, of: Role, revision: str) -> str:
    """Service whose EndpointSlices tell the router the engines of one role and revision."""
    return f"{name}-{of}-{revision}"


def claim_template(name: str, of: Role, digest: str) -> str:
    """ResourceClaimTemplate of a role; it is immutable, so that other content needs another name."""
    return f"{name}-{of}-{digest}"


def engines(name: str) -> str:
    """NetworkPolicy and PodMonitor of the engines of both roles."""
    return f"{name}-engines"


def engine_plugin(name: str) -> str:
    """ConfigMap with the engine's plugin."""
    return f"{name}-engine-plugin"


def router(name: str) -> str:
    """Deployment of the router and all that belongs to its pods."""
    return f"{name}-router"


def client_service(name: str) -> str:
    """Service that clients use: the name of the resource itself."""
    return name


def valkey(name: str) -> str:
    """Deployment, Service and NetworkPolicy of the managed Valkey."""
    return f"{name}-valkey"
