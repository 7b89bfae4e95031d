"""Engines from the configuration."""

from urllib.parse import urlsplit

from kvloop.api.contract import StaticEndpoints, StaticEngine
from kvloop.api.labels import Role
from kvloop.router.pool import Endpoint

_HTTP_PORT = 80


def endpoints(config: StaticEndpoints) -> list[Endpoint]:
    """The configured engines."""
    return [
        *(_endpoint(Role.PREFILL, engine) for engine in config.prefill),
        *(_endpoint(Role.DECODE, engine) for engine in config.decode),
    ]


def _endpoint(role: Role, engine: StaticEngine) -> Endpoint:
    parts = urlsplit(engine.url)
    address = parts.netloc if parts.port is not None else f"{parts.netloc}:{_HTTP_PORT}"
    return Endpoint(role, address, engine.revision)
