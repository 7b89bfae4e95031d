"""Simulated nodes: KWOK plays a kubelet that starts every pod at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STAGES = Path(__file__).parent / "kwok-stages.yaml"
_MARK = {"kwok.x-k8s.io/node": "fake"}


@dataclass(frozen=True)
class NodeShape:
    """What a simulated node says it is."""

    instance_type: str
    capacity: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    tainted_for: str | None = None  # a resource whose pods alone may be placed there, as GPU node groups have it


# 8 H200 GPUs and 16 EFA devices; the memory that EKS nodes of the type offer to pods.
P5EN = NodeShape(
    "p5en.48xlarge",
    {"cpu": "192", "memory": "1937332Mi", "pods": "110", "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"},
    tainted_for="nvidia.com/gpu",
)

# A node for whatever needs no GPU.
M7I = NodeShape("m7i.4xlarge", {"cpu": "16", "memory": "62Gi", "pods": "234"})


def fake_node(name: str, zone: str, shape: NodeShape) -> dict[str, Any]:
    """The Node object of a simulated node in an availability zone, "us-east-1a" for instance."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {**_MARK, "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": shape.instance_type,
                "topology.kubernetes.io/region": zone[:-1],
                "topology.kubernetes.io/zone": zone,
                **shape.labels,
            },
        },
        "spec": {"taints": [{"key": shape.tainted_for, "effect": "NoSchedule"}] if shape.tainted_for else []},
        "status": {"allocatable": dict(shape.capacity), "capacity": dict(shape.capacity)},
    }


def command(binary: Path, kubeconfig: Path) -> list[str | Path]:
    """KWOK's command line: it leaves nodes without our annotation alone, and serves no port."""
    return [
        binary,
        f"--config={STAGES}",
        f"--kubeconfig={kubeconfig}",
        f"--manage-nodes-with-annotation-selector={'='.join(*_MARK.items())}",
        "--cidr=100.64.0.0/16",  # of the pods' addresses, which lead nowhere
        "--node-ip=100.127.0.1",
        "--node-port=0",
        "--node-lease-duration-seconds=40",  # heartbeats, as a kubelet sends them
    ]
