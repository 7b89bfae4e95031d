"""Dynamic resource allocation, with the cluster's own controllers and scheduler, and devices on paper."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from e2e.cluster import Client, eventually
from e2e.cluster.kwok import M7I
from e2e.control.harness import Site, settled
from e2e.site import Body

pytestmark = pytest.mark.control

DRIVERS: Final = {"efa.networking.k8s.aws": "dra.net", "gpu.nvidia.com": "gpu.nvidia.com"}
"""Drivers by their device class."""
TEMPLATES: Final = "resourceclaimtemplates"
LABEL: Final = "example.com/nodes"


def device_class(name: str, driver: str) -> Body:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [selector]},
    }


def resource_slice(node: str, driver: str, devices: int = 4) -> Body:
    """What a driver says that a node has."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"device-{number}"} for number in range(devices)],
        },
    }


@pytest.fixture
def node(control_cluster: Client, namespace: str) -> Iterator[str]:
    """A node with four GPUs and four EFA devices, by dynamic resource allocation alone."""
    shape = replace(M7I, labels={LABEL: namespace})
    (name,) = control_cluster.add_fake_nodes(1, prefix=namespace, shape=shape)
    classes = [device_class(*item) for item in DRIVERS.items()]
    made = [*classes, *(resource_slice(name, driver) for driver in DRIVERS.values())]
    control_cluster.apply(made)
    yield name
    control_cluster.delete(made)
    control_cluster.kubectl("delete", "node", name)


def spec(site: Site, devices: int) -> dict[str, Any]:
    return {
        "prefill": {"replicas": 2},
        "decode": {"replicas": 0},
        "transfer": {
            "fabric": "EFA",
            "efa": {"mechanism": "DynamicResourceAllocation", "devicesPerPod": devices},
        },
        "placement": {"nodeSelector": {LABEL: site.namespace}},
    }


def templates(site: Site, role: str = "prefill") -> set[str]:
    return {each["metadata"]["name"] for each in site.items(TEMPLATES) if f"-{role}-" in each["metadata"]["name"]}


def claimed(site: Site, pod: str) -> str:
    """The template of a pod's claim."""
    (claim,) = site.get("pod", pod)["spec"]["resourceClaims"]
    return str(claim["resourceClaimTemplateName"])


@pytest.mark.usefixtures("node")
def test_a_pod_of_the_old_template_comes_back_during_a_rollout(site: Site) -> None:
    """It is made from the old ResourceClaimTemplate, which must still be there."""
    site.create(**spec(site, devices=2))
    site.wait_for("Ready", "True")
    (old,) = templates(site)
    site.patch({"transfer": {"efa": {"devicesPerPod": 1}}, "rollout": {"paused": True}})
    site.wait_for("Ready", "False", "Paused")
    settled(site.audit())
    assert len(templates(site)) == 2
    uid = site.get("pod", "chat-prefill-0")["metadata"]["uid"]
    site.kubectl("delete", "pod", "chat-prefill-0", "--grace-period=0", "--force")
    eventually(lambda: site.get("pod", "chat-prefill-0")["metadata"]["uid"] != uid)
    site.kubectl("wait", "pod/chat-prefill-0", "--for=condition=Ready", "--timeout=30s")
    assert claimed(site, "chat-prefill-0") == old

    site.patch({"rollout": {"paused": False}})
    site.wait_for("Ready", "True", timeout_s=90)
    new = {claimed(site, f"chat-prefill-{number}") for number in range(2)}
    eventually(lambda: templates(site) == new)
    assert old not in new


@pytest.mark.usefixtures("node")
def test_devices_that_nobody_has_are_told(site: Site) -> None:
    site.create(**spec(site, devices=5))
    told = site.wait_for("Reconciling", "True", "EFAUnavailable")
    assert "Install the EFA DRA driver on nodes with free devices" in told["message"]
    site.patch({"transfer": {"efa": {"devicesPerPod": 2}}})
    site.wait_for("Ready", "True", timeout_s=90)
