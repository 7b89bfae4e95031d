"""The API server that the tier's tests rely on."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Client, KubectlError

pytestmark = pytest.mark.api


def test_applies_objects_on_the_servers_side(api_cluster: Client, namespace: str) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1"}}
    api_cluster.apply(config_map, namespace)
    api_cluster.apply([config_map | {"data": {"a": "2"}}], namespace)
    found = api_cluster.get("configmap", "x", namespace)
    assert found["data"] == {"a": "2"}
    api_cluster.delete(config_map, namespace)
    with pytest.raises(KubectlError, match="not found"):
        api_cluster.get("configmap", "x", namespace)


def test_the_servers_certificate_is_verified(api_cluster: Client) -> None:
    text = api_cluster.kubeconfig.read_text()
    assert "certificate-authority" in text
    assert "insecure" not in text
    assert stat.S_IMODE(api_cluster.kubeconfig.stat().st_mode) == 0o600


def test_a_service_account_has_its_own_rights_and_no_others(api_cluster: Client, namespace: str) -> None:
    api_cluster.kubectl("create", "serviceaccount", "reader", "-n", namespace)
    api_cluster.kubectl("create", "role", "reader", "--verb=get,list", "--resource=configmaps", "-n", namespace)
    api_cluster.kubectl(
        "create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:reader", "-n", namespace
    )
    kubeconfig = api_cluster.service_account_kubeconfig("reader", namespace)
    api_cluster.kubectl("get", "configmaps", f"--kubeconfig={kubeconfig}")
    with pytest.raises(KubectlError, match="forbidden"):
        api_cluster.kubectl("get", "secrets", f"--kubeconfig={kubeconfig}")


def test_pod_security_labels_are_enforced(api_cluster: Client, namespace: str) -> None:
    api_cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    api_cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, namespace)
    spec = {"hostNetwork": True, "containers": [{"name": "x", "image": "x"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        api_cluster.apply(pod, namespace)


def test_the_audit_log_tells_who_asked_what(api_cluster: Client, namespace: str) -> None:
    kubeconfig = api_cluster.kubeconfig_for("counted", "system:masters")
    api_cluster.kubectl("create", "configmap", "by-counted", "-n", namespace, f"--kubeconfig={kubeconfig}")
    api_cluster.kubectl("create", "configmap", "by-admin", "-n", namespace)
    entries = _audit(api_cluster.audit_log, namespace)
    assert [(entry["user"]["username"], entry["verb"], entry["objectRef"]["name"]) for entry in entries] == [
        ("counted", "create", "by-counted")
    ]


def _audit(log: Path, namespace: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return [entry for entry in entries if entry.get("objectRef", {}).get("namespace") == namespace]
