"""kvloop, installed once for the tests of the tier, and a namespace with it for each."""

from collections.abc import Iterator

import pytest

from e2e.cluster import Client
from e2e.node.harness import NodeSite, Platform, install, opened


@pytest.fixture(scope="session")
def platform(node_cluster: Client) -> Platform:
    """The operator in its pod, and images for the others."""
    return install(node_cluster)


@pytest.fixture
def site(platform: Platform) -> Iterator[NodeSite]:
    """A namespace of the test's own."""
    with opened(platform) as site:
        yield site
