"""Clusters for the tiers api, control and node, each started when a test first asks for it."""

import uuid
from collections.abc import Iterator

import pytest

from e2e.cluster import Client, Cluster
from e2e.cluster.system import leased


@pytest.fixture(scope="session")
def control_cluster() -> Iterator[Client]:
    """A control plane with KWOK: add the simulated nodes you need, with a prefix of your own."""
    with leased("test-control-") as name, Cluster(name, "control") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def api_cluster(request: pytest.FixtureRequest) -> Iterator[Client]:
    """An API server; the control tier's, if that runs in this session anyway."""
    if any("control_cluster" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield request.getfixturevalue("control_cluster")
        return
    with leased("test-api-") as name, Cluster(name, "api") as cluster:
        yield cluster


_CLUSTERS = ("node_cluster", "control_cluster", "api_cluster")


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, in the cluster whose fixture it asks for."""
    cluster: Client = next(request.getfixturevalue(name) for name in _CLUSTERS if name in request.fixturenames)
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
