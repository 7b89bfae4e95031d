"""One operator for the tests of the tier, and a namespace with it for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import Client
from e2e.cluster.kwok import NodeShape
from e2e.control.harness import OperatorProcess, Site, install

CPU_NODE = NodeShape("m7i.48xlarge", {"cpu": "10000", "memory": "100Ti", "pods": "5000"})


@pytest.fixture(scope="session")
def kubeconfig(control_cluster: Client) -> Path:
    """The operator's, in a cluster where everything is installed and simulated engines have a node."""
    control_cluster.add_fake_nodes(1, prefix="cpu", shape=CPU_NODE)
    return install(control_cluster)


@pytest.fixture(scope="session")
def operator(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """A running operator that serves all namespaces."""
    with OperatorProcess(kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log") as process:
        yield process


@pytest.fixture
def site(control_cluster: Client, operator: OperatorProcess, namespace: str) -> Site:
    operator.ensure()
    return Site(control_cluster, namespace, operator)
