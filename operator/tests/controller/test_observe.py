"""What is copied from objects, and what the kubelet's words are taken to mean."""

from dataclasses import fields
from typing import Any

import pytest

from kvloop.api.labels import APPLIED_HASH, REVISION, TEMPLATE_HASH
from kvloop.controller import observe
from kvloop.controller.observe import Warned
from kvloop.plan.observed import Missing, NodeKind, Workload

from .doubles import node, owned, pod


def managed(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Service", "metadata": {"name": "s", "managedFields": list(entries)}}


def entry(manager: str, operation: str = "Apply", time: str = "2030-01-01T00:00:00Z", **more: Any) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "time": time, "fieldsV1": {"f:spec": {}}, **more}


def test_a_stateful_set() -> None:
    body = owned("StatefulSet", "chat-prefill", {"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 2}}})
    body["metadata"] |= {"uid": "u", "generation": 4, "annotations": {APPLIED_HASH: "abc"}}
    body["status"] = {"observedGeneration": 3, "replicas": 3, "readyReplicas": 2, "updatedReplicas": 1}
    child = observe.child(body)
    assert (child.generation, child.observed_generation, child.applied_hash) == (4, 3, "abc")
    assert child.workload == Workload(replicas=3, partition=2, pods=3, ready=2, updated=1)


def test_a_deployment_tells_why_it_makes_no_pods_and_a_stateful_set_by_its_warnings() -> None:
    body = owned("Deployment", "chat-router")
    body["metadata"]["uid"] = "u"
    body["status"] = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "no quota"}]}
    workload = observe.child(body).workload
    assert workload is not None
    assert workload.create_failure == "no quota"
    body |= {"kind": "StatefulSet", "status": {}}
    warnings = [Warned("FailedDelete", "other"), Warned("FailedCreate", "newest"), Warned("FailedCreate", "older")]
    workload = observe.with_create_failure(observe.child(body), warnings).workload
    assert workload is not None
    assert workload.create_failure == "newest"


def test_what_the_readiness_probe_came_to_is_in_warnings() -> None:
    warnings = [Warned("Unhealthy", "Liveness probe failed: 500"), Warned("Unhealthy", "Readiness probe failed: a: b")]
    record = observe.pod(pod("p"))
    assert observe.with_probe_failure(record, warnings[:1]).probe_failure == ""
    assert observe.with_probe_failure(record, warnings).probe_failure == "a: b"


def test_every_field_of_a_record_is_copied() -> None:
    """A field that the planner is given and the controller forgets would be a default for ever."""
    body = pod("chat-prefill-1", conditions=[], phase="Failed", reason="Evicted", message="disk", podIP="1")
    body["status"]["conditions"] = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2030-01-02T03:04:09Z"},
        {"type": "PodScheduled", "status": "True"},
    ]
    body["status"]["containerStatuses"] = [
        {
            "name": "vllm",
            "image": "x",
            "restartCount": 1,
            "started": True,
            "state": {"running": {"startedAt": "2030-01-02T03:04:07Z"}, "waiting": {"reason": "w", "message": "m"}},
            "lastState": {"terminated": {"reason": "Error", "exitCode": 1}},
        }
    ]
    body["metadata"]["deletionTimestamp"] = "2030-01-02T03:04:06Z"
    body["metadata"]["labels"] |= {REVISION: "r", "controller-revision-hash": "c"}
    body["metadata"]["annotations"] = {TEMPLATE_HASH: "t"}
    body["spec"] = {"nodeName": "n", "resourceClaims": [{"name": "devices", "resourceClaimTemplateName": "c"}]}
    record = observe.pod(body)
    assert _unset(record) == ["unschedulable", "probe_failure"], "which a scheduled pod does not have, or Events tell"
    assert _unset(record.containers[0]) == []
    workload = owned("Deployment", "d", {"replicas": 1, "updateStrategy": {"rollingUpdate": {"partition": 1}}})
    workload["metadata"] |= {"uid": "u", "generation": 1, "annotations": {APPLIED_HASH: "h"}}
    workload["spec"]["template"] = {"metadata": {"annotations": {TEMPLATE_HASH: "t"}}}
    failure = {"type": "ReplicaFailure", "status": "True", "message": "no"}
    counts = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "currentRevision": "c", "updateRevision": "u"}
    workload["status"] = {"observedGeneration": 1, "conditions": [failure], **counts}
    child = observe.child(workload)
    assert _unset(child) == []
    assert child.workload is not None
    assert _unset(child.workload) == []


def _unset(record: Any) -> list[str]:
    return [field.name for field in fields(record) if not getattr(record, field.name)]


def test_a_child_with_the_least_there_can_be() -> None:
    child = observe.child({"kind": "Service", "metadata": {"name": "s", "uid": "u"}})
    assert (child.owner_uid, child.applied_hash, child.workload) == (None, "", None)


def test_a_pod_in_trouble() -> None:
    crashed = {
        "name": "vllm",
        "image": "x",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
    }
    scheduled = {"type": "PodScheduled", "status": "False", "message": "0/5 nodes are available"}
    record = observe.pod(pod("p", phase="Pending", conditions=[scheduled], containerStatuses=[crashed]))
    assert record.unschedulable == "0/5 nodes are available"
    (container,) = record.containers
    assert (container.waiting, container.message, container.restarts) == ("CrashLoopBackOff", "back-off", 3)
    assert (container.terminated, container.exit_code, container.running) == ("OOMKilled", 137, False)
    assert not record.ready
    assert record.created_at == 1893553445.0


TAINT = "node(s) had untolerated taint {example.com/team: a}"
WORDS = {
    f"0/120 nodes are available: 3 Insufficient x.io/a, 117 {TAINT}.": f"Insufficient x.io/a, {TAINT}",
    f"0/21 nodes are available: 11 {TAINT}, 9 Insufficient x.io/a, 1 Too many pods.": (
        f"Insufficient x.io/a, Too many pods, {TAINT}"
    ),
    f"0/2 nodes are available: 2 {TAINT}. preemption: 0/2 nodes are available: 2 Preemption is not helpful.": TAINT,
    "0/2 nodes are available: 2 Insufficient x.io/a. no new claims to deallocate, preemption: 0/2 nodes.": (
        "Insufficient x.io/a"
    ),
    '0/3 nodes are available: persistentvolumeclaim "w" not found.': 'persistentvolumeclaim "w" not found',
}


@pytest.mark.parametrize(("words", "expected"), WORDS.items())
def test_the_scheduler_s_words_count_no_nodes(words: str, expected: str) -> None:
    assert observe.without_counts(words) == f"no nodes are available: {expected}"


@pytest.mark.parametrize("words", ["", "0/5 nodes are available", "Scheduling is blocked due to non-empty gates"])
def test_words_of_another_form_stay(words: str) -> None:
    assert observe.without_counts(words) == words


def test_a_pod_that_serves() -> None:
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]
    running = {"name": "vllm", "state": {"running": {}}, "restartCount": 0}
    init = {"name": "init", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}
    record = observe.pod(
        pod("p", phase="Running", conditions=conditions, containerStatuses=[running], initContainerStatuses=[init])
    )
    assert (record.ready, record.scheduled, record.unschedulable) == (True, True, "")
    assert [(each.name, each.running, each.exit_code) for each in record.containers] == [
        ("init", False, 0),
        ("vllm", True, None),
    ]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('secret "hf" not found', Missing("Secret", "hf")),
        ('configmap "settings" not found', Missing("ConfigMap", "settings")),
        ("couldn't find key token in Secret team/hf", Missing("Secret", "hf", "token")),
        ("couldn't find key a.b in ConfigMap team/settings", Missing("ConfigMap", "settings", "a.b")),
        ('MountVolume.SetUp failed for volume "keys" : secret "keys" not found', Missing("Secret", "keys")),
        ("container has runAsNonRoot and image will run as root", None),
    ],
)
def test_the_kubelets_words_for_what_is_missing(message: str, expected: Missing | None) -> None:
    assert observe.missing([message]) == (frozenset({expected}) if expected else frozenset())


def test_nodes_that_are_alike_stand_together() -> None:
    bodies = [
        node("a", gpu="8", efa="16"),
        node("b", gpu="8", efa="16"),
        node("c", gpu="8", efa="15"),
        node("d", zone="us-east-1b", gpu="8", efa="16"),
    ]
    offers = [offer for body in bodies if (offer := observe.offer(body))]
    whole = {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 16}
    assert observe.node_kinds(offers) == (
        NodeKind("us-east-1a", "p5en.48xlarge", 1, whole | {"vpc.amazonaws.com/efa": 15}),
        NodeKind("us-east-1a", "p5en.48xlarge", 2, whole),
        NodeKind("us-east-1b", "p5en.48xlarge", 1, whole),
    )


def test_nodes_that_take_no_pods_offer_nothing() -> None:
    assert observe.offer(node("a", ready=False, gpu="8")) is None
    assert observe.offer(node("a", gpu="8") | {"spec": {"unschedulable": True}}) is None
    bare = {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert observe.offer(bare) == ("", "", ())


def test_owned_fields_change_with_what_is_taken_from_us_alone() -> None:
    ours = entry("kvloop")
    digest = observe.owned_fields(managed(ours))
    assert digest == observe.owned_fields(
        managed(ours, entry("kubectl", "Update"), entry("kvloop", subresource="scale"))
    )
    assert digest != observe.owned_fields(managed(ours | {"fieldsV1": {"f:spec": {"f:ports": {}}}}))
    assert observe.owned_fields(managed(entry("kubectl"))) == ""


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], False),
        ([entry("kubectl-edit", "Update", "2030-01-01T00:00:01Z")], True),
        ([entry("kubectl-edit", "Update", "2030-01-01T00:00:00Z")], True),
        ([entry("kubectl-edit", "Update", "2029-12-31T23:59:59Z")], False),
        ([entry("controller", "Update", "2030-01-01T00:00:01Z", subresource="status")], False),
        ([entry("autoscaler", "Update", "2030-01-01T00:00:01Z", subresource="scale")], False),
        ([entry("kvloop", "Update", "2030-01-01T00:00:01Z", subresource="status")], False),
    ],
)
def test_who_edited_after_our_last_apply(others: list[dict[str, Any]], expected: bool) -> None:
    assert observe.edited_after_us(managed(entry("kvloop"), *others)) is expected


def test_an_object_that_we_never_applied_counts_as_edited() -> None:
    assert observe.edited_after_us(managed())


def test_ownership_of_the_replica_count() -> None:
    assert observe.owns_replicas(managed(entry("kvloop", fieldsV1={"f:spec": {"f:replicas": {}}})))
    assert not observe.owns_replicas(managed(entry("kvloop")))
    assert not observe.owns_replicas(managed(entry("hpa", fieldsV1={"f:spec": {"f:replicas": {}}})))
