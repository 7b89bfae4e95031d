"""Everything that can keep a real kubelet from running an engine has its reason in the status within half a minute."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from e2e.cluster import eventually
from e2e.node.harness import NodeSite
from e2e.site import Body

pytestmark = pytest.mark.node

TOLD_S: Final = 30
STARTED_S: Final = 120
"""Longest time until the kubelet has something to say, while many pods start at once on a busy machine."""
NONE: Final = {"replicas": 0, "gpus": 0}


def engine(site: NodeSite, *, pod: Body | None = None, container: Body | None = None, **changes: Any) -> Body:
    """A spec with one prefill engine, whose pod and container are as given, and nothing else."""
    spec = (pod or {}) | ({"containers": [{"name": "vllm", **container}]} if container else {})
    prefill = {"replicas": 1, "gpus": 0} | ({"podTemplate": {"spec": spec}} if spec else {})
    return {"prefill": prefill, "decode": NONE, "router": {"replicas": 0}, "engine": site.engine()} | changes


def faults(site: NodeSite) -> dict[str, tuple[str, str, Body]]:
    """By name: the reason, words of the message, and the spec."""
    absent = site.engine(image="kvloop/enginesim:no-such-tag") | {"imagePullPolicy": "Never"}
    volume = {"name": "absent", "secret": {"secretName": "absent"}}
    mounts = {"volumeMounts": [{"name": "absent", "mountPath": "/absent"}]}
    probe = {"httpGet": {"path": "/no-such-path", "port": "http"}, "periodSeconds": 1}
    return {
        "image": ("ImagePullFailed", "no-such-tag", engine(site, engine=absent)),
        "crash": ("EngineCrashed", "exit code", engine(site, engine=site.engine(args=["--no-such-flag"]))),
        "memory": ("EngineOutOfMemory", "limits.memory", engine(site) | _with_memory("24Mi")),
        "config-map": (
            *("ConfigMapNotFound", '"absent"'),
            engine(site, container={"envFrom": [{"configMapRef": {"name": "absent"}}]}),
        ),
        "secret": (
            *("SecretNotFound", '"absent"'),
            engine(site, container={"envFrom": [{"secretRef": {"name": "absent"}}]}),
        ),
        "secret-volume": ("SecretNotFound", '"absent"', engine(site, pod={"volumes": [volume]}, container=mounts)),
        "no-node": (
            *("InsufficientCapacity", "No ready node has the labels example.com/no=node"),
            engine(site, placement={"sameZone": "None", "nodeSelector": {"example.com/no": "node"}}),
        ),
        "probe": ("EngineNotReady", "readiness probe", engine(site, container={"readinessProbe": probe})),
    }


def _with_memory(limit: str) -> Body:
    return {"prefill": {"replicas": 1, "gpus": 0, "resources": {"limits": {"memory": limit}}}}


def test_every_failure_of_a_pod_is_told(site: NodeSite) -> None:
    wanted = faults(site)
    for name, (_, _, spec) in wanted.items():
        site.create(name, **spec)
    for name, (reason, words, _) in wanted.items():
        eventually(shown(site, name), STARTED_S)
        told = site.wait_for("Ready", "False", reason, name, TOLD_S)
        assert words in told["message"], told


def shown(site: NodeSite, name: str) -> Callable[[], bool]:
    """Whether the cluster itself says what is wrong: in the pod's status, or by an event."""

    def check() -> bool:
        pods = site.pods("prefill", name)
        if not pods:
            return False
        (pod,) = pods
        status = pod["status"]
        conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
        states = [{**each["state"], **each["lastState"]} for each in status.get("containerStatuses", ())]
        waiting = {state["waiting"].get("reason") for state in states if "waiting" in state}
        events = site.items("events", f"--field-selector=involvedObject.name={pod['metadata']['name']},type=Warning")
        return (
            conditions.get("PodScheduled") == "False"
            or bool(waiting - {"ContainerCreating", "PodInitializing"})
            or any("terminated" in state for state in states)
            or any(event["reason"] in {"FailedMount", "Unhealthy"} for event in events)
        )

    return check
