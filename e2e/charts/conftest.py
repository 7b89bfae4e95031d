"""A cluster of the charts' own: others install the same CRD without Helm."""

from collections.abc import Iterator

import pytest

from e2e.cluster import Client, Cluster
from e2e.cluster.system import leased


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    """An API server with nothing of kvloop in it."""
    with leased("test-charts-") as name, Cluster(name, "api") as started:
        yield started
