"""Fixtures of the planner's tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvloop.api.labels import Role
from kvloop.api.v1alpha1 import DisaggregatedInference, parse
from kvloop.plan.config import ApiAvailable, PlanConfig
from kvloop.plan.desired import plan
from kvloop.plan.merge import merge
from kvloop.plan.observed import Observed
from kvloop.plan.scope import Scope

CASES = Path(__file__).parents[1] / "cases"
Make = Callable[..., DisaggregatedInference]
Children = Callable[..., dict[tuple[str, str], dict[str, Any]]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write operator/tests/cases/*/out anew")


@pytest.fixture(scope="session")
def config() -> PlanConfig:
    return PlanConfig(
        router_image="registry.example/kvloop-router:1",
        plugin_files={
            "kvloop/__init__.py": "",
            "kvloop/engine/plugin.py": "def register() -> None:\n    ...\n",
            "kvloop_engine-1.dist-info/METADATA": "Name: kvloop-engine\nVersion: 1\n",
            "kvloop_engine-1.dist-info/entry_points.txt": "[vllm.general_plugins]\nkvloop = kvloop.engine.plugin\n",
        },
        api_available=ApiAvailable(pod_monitor=True),
        scrape_namespaces=("monitoring",),
    )


@pytest.fixture(scope="session")
def make() -> Make:
    """A resource: the given spec merged over a small one; null removes a field."""

    def build(spec: dict[str, Any] | None = None, **metadata: Any) -> DisaggregatedInference:
        base: dict[str, Any] = {
            "model": {"name": "m", "source": {"path": "/models/m"}},
            "engine": {"image": "registry.example/vllm:0.32.0"},
            "prefill": {"replicas": 2},
            "decode": {"replicas": 2},
            "transfer": {"fabric": "UCX"},
        }
        return parse(
            {
                "metadata": {"name": "chat", "namespace": "ns", "uid": "1-2-3", **metadata},
                "spec": merge(base, spec or {}),
            }
        )

    return build


@pytest.fixture(scope="session")
def scope(make: Make, config: PlanConfig) -> Callable[..., Scope]:
    """The scope of such a resource."""
    return lambda spec=None: Scope.of(make(spec), config)


@pytest.fixture(scope="session")
def children(make: Make, config: PlanConfig) -> Children:
    """Its children by kind and name."""

    def planned(spec: dict[str, Any] | None = None, observed: Observed | None = None, **metadata: Any) -> Any:
        desired = plan(make(spec, **metadata), observed, config)
        return {(child["kind"], child["metadata"]["name"]): child for child in desired.children}

    return planned


@pytest.fixture(scope="session")
def engine(children: Children) -> Callable[..., dict[str, Any]]:
    """The pod template of a role."""

    def template(spec: dict[str, Any] | None = None, role: Role = Role.PREFILL) -> dict[str, Any]:
        found: dict[str, Any] = children(spec)["StatefulSet", f"chat-{role}"]["spec"]["template"]
        return found

    return template


@pytest.fixture(scope="session")
def container(engine: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The engine's container of a role."""

    def vllm(spec: dict[str, Any] | None = None, role: Role = Role.PREFILL) -> dict[str, Any]:
        found: dict[str, Any] = engine(spec, role)["spec"]["containers"][0]
        return found

    return vllm
