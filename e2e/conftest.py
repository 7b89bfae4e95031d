"""Clusters for the tiers api, control and node, each started when a test first asks for it.

KVLOOP_TEST_CLUSTER=<name> uses a cluster of `python -m e2e.cluster up` for all tiers instead, and
KVLOOP_TEST_KUBECONFIG=<file> one of yours; neither is stopped.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Client, Cluster, ExistingCluster, attach
from e2e.cluster.cluster import Profile
from e2e.cluster.system import leased
from e2e.site import Site

_CLUSTERS = ("node_cluster", "control_cluster", "api_cluster")


@pytest.fixture(scope="session")
def node_cluster() -> Iterator[Client]:
    """A cluster with a real node, named "node", that runs e2e.cluster.images.TEST_IMAGE and whatever you load."""
    with _cluster("node") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def control_cluster() -> Iterator[Client]:
    """A control plane with KWOK: add the simulated nodes that you need, with a prefix of your own."""
    with _cluster("control") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def api_cluster(request: pytest.FixtureRequest) -> Iterator[Client]:
    """An API server; the control tier's, if that runs in this session anyway."""
    if any("control_cluster" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield request.getfixturevalue("control_cluster")
        return
    with _cluster("api") as cluster:
        yield cluster


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, in the cluster whose fixture the test asks for."""
    cluster: Client = next(request.getfixturevalue(name) for name in _CLUSTERS if name in request.fixturenames)
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Show what cluster and pods went through beside a test that failed in them."""
    report = yield
    if report.when == "call" and report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Client | Site):
                report.sections.append((name, value.diagnostics()))
    return report


@contextmanager
def _cluster(profile: Profile) -> Iterator[Client]:
    if kubeconfig := os.environ.get("KVLOOP_TEST_KUBECONFIG"):
        yield ExistingCluster("test-existing", Path(kubeconfig))
    elif name := os.environ.get("KVLOOP_TEST_CLUSTER"):
        yield attach(name)
    else:
        with leased(f"test-{profile}-") as name, Cluster(name, profile) as cluster:
            yield cluster
