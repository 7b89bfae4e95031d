"""What the operator's own settings tell the planner; constant while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

VALKEY_IMAGE: Final = "docker.io/valkey/valkey:8.1-alpine"


@dataclass(frozen=True)
class ApiAvailable:
    """Optional APIs that the cluster serves."""

    pod_monitor: bool = False


@dataclass(frozen=True)
class PlanConfig:
    """Settings of the planner.

    `plugin_files` maps a path below the engine's plugin folder to its text, as `kvloop.engine.bundle.files()` gives it.
    `operator_namespace` is where the operator's pods may come from to read metrics, `scrape_namespaces` where
    Prometheus' may.
    """

    router_image: str
    plugin_files: Mapping[str, str] = field(default_factory=dict)
    cluster_domain: str = "cluster.local"
    api_available: ApiAvailable = ApiAvailable()
    operator_namespace: str = "kvloop-system"
    scrape_namespaces: tuple[str, ...] = ()
    valkey_image: str = VALKEY_IMAGE
