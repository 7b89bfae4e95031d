"""A real Kubernetes cluster for tests and demonstrations, built from Go modules: no container engine, no registry."""

from e2e.cluster.client import Client, KubectlError, eventually
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.others import ExistingCluster, KindCluster, attach

__all__ = [
    "Client",
    "Cluster",
    "ClusterError",
    "ExistingCluster",
    "KindCluster",
    "KubectlError",
    "attach",
    "eventually",
]
