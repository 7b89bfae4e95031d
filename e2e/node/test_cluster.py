"""The embedded cluster itself: its node runs pods as any node does, and nothing of it stays behind."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from e2e.cluster import Client, Cluster, KubectlError, eventually
from e2e.cluster.images import TEST_IMAGE
from e2e.cluster.system import leased

pytestmark = pytest.mark.node


def test_a_service_answers_the_machine_and_pods(node_cluster: Client, namespace: str) -> None:
    cluster_ip, pods = _serve(node_cluster, namespace)
    assert _get(f"http://{cluster_ip}/") in pods
    for url in (f"http://{cluster_ip}/", "http://web/", f"http://web.{namespace}.svc.cluster.local/"):
        assert _get_from_pod(pods, url) in pods


def test_a_pods_token_reaches_the_api_server_with_its_own_rights(node_cluster: Client, namespace: str) -> None:
    _, pods = _serve(node_cluster, namespace)
    listing = f"https://kubernetes.default.svc/api/v1/namespaces/{namespace}/pods"
    assert "forbidden" in _get_from_pod(pods, listing)
    arguments = ("--clusterrole=view", f"--serviceaccount={namespace}:default", f"--namespace={namespace}")
    node_cluster.kubectl("create", "rolebinding", "view", *arguments)

    def listed() -> set[str]:
        return {pod["metadata"]["name"] for pod in json.loads(_get_from_pod(pods, listing))["items"]}

    assert eventually(lambda: listed() == set(pods))


def test_the_api_server_reaches_the_kubelet(node_cluster: Client, namespace: str) -> None:
    _, pods = _serve(node_cluster, namespace)
    name = next(iter(pods))
    assert "serving on :8080" in node_cluster.kubectl("logs", name, f"--namespace={namespace}")
    assert node_cluster.kubectl("exec", name, f"--namespace={namespace}", "--", "/testpod", "hostname").strip() == name


def test_simulated_devices_on_the_real_node_and_on_simulated_ones(node_cluster: Client, namespace: str) -> None:
    node_cluster.set_capacity("node", {"example.com/device": 2})
    fake = node_cluster.add_fake_nodes(2, prefix=namespace)
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    node_cluster.apply(
        [
            _pod("real", {"example.com/device": "2"}),
            _pod("fake", {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"}, tolerations=tolerations),
        ],
        namespace,
    )
    for name, nodes in (("real", ["node"]), ("fake", fake)):
        node_cluster.wait(f"pod/{name}", "condition=Ready", namespace)
        assert node_cluster.get("pod", name, namespace)["spec"]["nodeName"] in nodes
    node_cluster.kubectl("delete", "node", *fake)


def test_clusters_side_by_side_and_a_clean_start_over_a_killed_one() -> None:
    with _fresh() as left, _fresh() as right:
        (left_ip, left_pods), (right_ip, right_pods) = _serve(left), _serve(right)
        assert (_get(f"http://{left_ip}/") in left_pods, _get(f"http://{right_ip}/") in right_pods) == (True, True)

        killed = left.processes()
        for process in killed:
            with contextlib.suppress(ProcessLookupError):  # died with another one
                os.kill(process, signal.SIGKILL)
        assert _get(f"http://{right_ip}/") in right_pods

        again = Cluster(left.name, "node")  # as another process would
        again.up()
        assert not killed & again.processes()
        left_ip, new_pods = _serve(again)
        assert _get(f"http://{left_ip}/") in new_pods
        assert not new_pods.keys() & left_pods.keys()


def test_down_leaves_nothing() -> None:
    with _fresh() as cluster:
        _serve(cluster)
        processes, address, folder = cluster.processes(), _address(cluster), cluster.folder
        assert address in _addresses()
        assert _control_groups(cluster)
    assert not folder.exists()
    assert not _control_groups(cluster)
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    # What is dead already is collected, and the link removed, in the kernel's own time.
    assert eventually(lambda: not [process for process in processes if Path(f"/proc/{process}").exists()])
    assert eventually(lambda: address not in _addresses())
    with pytest.raises(KubectlError):
        cluster.kubectl("get", "nodes")


@contextlib.contextmanager
def _fresh() -> Iterator[Cluster]:
    with leased("test-fresh-") as name, Cluster(name, "node") as cluster:
        yield cluster


def _serve(cluster: Client, namespace: str = "default") -> tuple[str, dict[str, str]]:
    """Run two pods that serve HTTP behind the Service `web`; returns its ClusterIP and the pods' addresses by name."""
    container = {
        "name": "web",
        "image": TEST_IMAGE,
        "args": ["serve"],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
    }
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    cluster.apply([deployment, service], namespace)
    cluster.wait("deployment/web", "condition=Available", namespace, timeout_s=120)
    pods = cluster.items("pods", f"--namespace={namespace}", "--selector=app=web")
    cluster_ip: str = cluster.get("service", "web", namespace)["spec"]["clusterIP"]
    return cluster_ip, {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods}


def _pod(name: str, resources: dict[str, str], **spec: Any) -> dict[str, Any]:
    container = {"name": "pause", "image": TEST_IMAGE, "resources": {"limits": resources}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _get(url: str) -> str:
    """What the URL answers, once it does: kube-proxy learns of ready pods a moment after we do."""

    def answer() -> str:
        try:
            return httpx.get(url, trust_env=False, timeout=5).text
        except httpx.TransportError:
            return ""

    return eventually(answer)


def _get_from_pod(pods: dict[str, str], url: str) -> str:
    return _get(str(httpx.URL(f"http://{next(iter(pods.values()))}:8080/get", params={"url": url})))


def _control_groups(cluster: Cluster) -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [*root.glob(f"kvloop-{cluster.name}"), *root.glob(f"*/kvloop-{cluster.name}")]


def _address(cluster: Cluster) -> str:
    server: str = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    return urlsplit(server).hostname or ""


def _addresses() -> set[str]:
    links = json.loads(subprocess.run(["ip", "-json", "address"], capture_output=True, check=True).stdout)
    return {address["local"] for link in links for address in link["addr_info"]}
