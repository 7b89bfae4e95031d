"""A real Kubernetes cluster for tests and demonstrations, built from Go modules: no Docker engine, no registry."""

from e2e.cluster.client import Client, KubectlError, eventually
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError

__all__ = ["Client", "Cluster", "ClusterError", "KubectlError", "eventually"]
