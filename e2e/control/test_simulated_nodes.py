"""Simulated nodes, on which the tier's tests rely."""

import json
from typing import Any

import pytest

from e2e.cluster import Client, eventually
from e2e.cluster.kwok import M7I

pytestmark = pytest.mark.control

_TOLERATIONS = [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def test_pods_go_where_their_devices_are_and_run(control_cluster: Client, namespace: str) -> None:
    zone = f"{namespace}a"  # a zone of the test's own
    gpu_nodes = control_cluster.add_fake_nodes(2, prefix=f"gpu-{namespace}", zone=zone)
    (cpu_node,) = control_cluster.add_fake_nodes(1, prefix=f"cpu-{namespace}", shape=M7I)
    devices = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"}
    control_cluster.apply(
        [
            _pod("one", devices, nodeSelector={"topology.kubernetes.io/zone": zone}),
            _pod("two", devices, nodeSelector={"topology.kubernetes.io/zone": zone}),
            _pod("cpu", {}, nodeSelector={"kubernetes.io/hostname": cpu_node}),
        ],
        namespace,
    )
    for name in ("one", "two", "cpu"):
        control_cluster.wait(f"pod/{name}", "condition=Ready", namespace)
    assert {_node(control_cluster, name, namespace) for name in ("one", "two")} == set(gpu_nodes)
    assert control_cluster.get("pod", "cpu", namespace)["status"]["podIP"]
    control_cluster.apply(_pod("three", devices, nodeSelector={"topology.kubernetes.io/zone": zone}), namespace)
    control_cluster.wait("pod/three", "condition=PodScheduled=false", namespace)
    control_cluster.kubectl("delete", "pod", "one", f"--namespace={namespace}")
    control_cluster.wait("pod/three", "condition=Ready", namespace)
    control_cluster.kubectl("delete", "node", cpu_node, *gpu_nodes)


def test_simulated_nodes_send_heartbeats(control_cluster: Client, namespace: str) -> None:
    (node,) = control_cluster.add_fake_nodes(1, prefix=namespace, shape=M7I)
    lease = eventually(lambda: control_cluster.get("lease", node, "kube-node-lease"))
    assert lease["spec"]["leaseDurationSeconds"] == 40
    control_cluster.kubectl("delete", "node", node)


def test_pods_that_are_not_to_become_ready(control_cluster: Client, namespace: str) -> None:
    (node,) = control_cluster.add_fake_nodes(1, prefix=namespace, shape=M7I)
    here = {"nodeName": node}
    not_ready = _pod("not-ready", {}, **here)
    not_ready["metadata"]["annotations"] = {"kvloop.io/fake-ready": "false"}
    absent = _pod("absent", {}, **here)
    absent["spec"]["containers"][0]["image"] = "example.invalid/image:does-not-exist"
    control_cluster.apply([not_ready, absent], namespace)
    control_cluster.wait("pod/not-ready", "jsonpath={.status.phase}=Running", namespace)
    waiting = "jsonpath={.status.containerStatuses[0].state.waiting.reason}=ImagePullBackOff"
    control_cluster.wait("pod/absent", waiting, namespace)
    for name in ("not-ready", "absent"):
        control_cluster.wait(f"pod/{name}", "condition=Ready=false", namespace)

    patch = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    arguments = ("--subresource=status", f"--patch={patch}", f"--namespace={namespace}")
    control_cluster.kubectl("patch", "pod", "not-ready", *arguments)
    control_cluster.wait("pod/not-ready", "condition=Ready", namespace)
    control_cluster.kubectl("delete", "node", node)


def _pod(name: str, resources: dict[str, str], **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "example.invalid/image", "resources": {"limits": resources}}
    spec = {"containers": [container], "tolerations": _TOLERATIONS} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _node(cluster: Client, pod: str, namespace: str) -> str:
    node: str = cluster.get("pod", pod, namespace)["spec"]["nodeName"]
    return node
