"""What nodes shaped like a p5en.48xlarge cannot give is told, with the remedy, and heals when they can."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from e2e.cluster import Client
from e2e.cluster.kwok import P5EN
from e2e.control.harness import Site

pytestmark = pytest.mark.control

EFA: Final = "vpc.amazonaws.com/efa"
LABEL: Final = "example.com/nodes"
"""Keeps a test's resources on its nodes."""


class Nodes:
    """Nodes of a test's own."""

    def __init__(self, cluster: Client, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self.names: list[str] = []

    def add(self, of: str, *, zone: str = "us-east-1a", efa: int = 16) -> str:
        """A node with 8 GPUs, for resources that are `on(of)`."""
        capacity = {name: count for name, count in P5EN.capacity.items() if name != EFA or efa}
        shape = replace(P5EN, labels={LABEL: self._label(of)}, capacity=capacity | ({EFA: str(efa)} if efa else {}))
        prefix = f"{self._namespace}-{len(self.names)}"
        (name,) = self._cluster.add_fake_nodes(1, prefix=prefix, zone=zone, shape=shape)
        self.names.append(name)
        return name

    def on(self, of: str, *, decode: int = 0) -> dict[str, Any]:
        """A spec: one prefill engine with all that such a node has, and decode engines."""
        return {
            "prefill": {"replicas": 1, "tensorParallelSize": 8},
            "decode": {"replicas": decode, "tensorParallelSize": 8},
            "transfer": {"fabric": "EFA"},
            "placement": {"instanceType": P5EN.instance_type, "nodeSelector": {LABEL: self._label(of)}},
        }

    def _label(self, of: str) -> str:
        return f"{self._namespace}-{of}"


@pytest.fixture
def nodes(control_cluster: Client, namespace: str) -> Iterator[Nodes]:
    made = Nodes(control_cluster, namespace)
    yield made
    control_cluster.kubectl("delete", "node", *made.names)


def test_missing_efa_devices_are_told_and_heal(site: Site, nodes: Nodes) -> None:
    nodes.add("none", efa=0)
    short = nodes.add("short", efa=15)
    for name in ("none", "short"):
        site.create(name, **nodes.on(name))
    none = site.wait_for("Reconciling", "True", "EFAUnavailable", "none")
    assert f"prefill-0 waits for a node with 16 EFA devices, but no node has {EFA} to give" in none["message"]
    assert "install the EFA device plugin" in none["message"]
    fewer = site.wait_for("Reconciling", "True", "EFAUnavailable", "short")
    assert "none has more than 15 to give" in fewer["message"]
    assert "set transfer.efa.devicesPerPod: 15" in fewer["message"]

    site.cluster.set_capacity(short, {EFA: 16})
    site.wait_for("Ready", "True", name="short")
    site.patch({"transfer": {"fabric": "UCX"}}, "none")
    site.wait_for("Ready", "True", name="none")


def test_no_nodes_and_nodes_in_two_zones_are_told_and_heal(site: Site, nodes: Nodes) -> None:
    site.create(**nodes.on("pair", decode=1))
    lacking = site.wait_for("Reconciling", "True", "InsufficientCapacity")
    assert f"No ready node has the labels {LABEL}={site.namespace}-pair" in lacking["message"]
    nodes.add("pair", zone="us-east-1a")
    nodes.add("pair", zone="us-east-1b")
    split = site.wait_for("Reconciling", "True", "ZonesSplit")
    assert "Nodes that are large enough, used or not: 1 in us-east-1a, 1 in us-east-1b." in split["message"]
    assert "Set placement.zone" in split["message"]
    nodes.add("pair", zone="us-east-1a")
    site.wait_for("Ready", "True")
