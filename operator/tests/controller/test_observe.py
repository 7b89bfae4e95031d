"""Objects as a real API server gave them, cut to what is read."""

from typing import Any

from kvloop.controller import observe

POD: dict[str, Any] = {
    "metadata": {
        "name": "demo-prefill-0",
        "uid": "u",
        "creationTimestamp": "2026-11-29T20:00:00Z",
        "labels": {
            "app.kubernetes.io/component": "prefill",
            "kvloop.io/revision": "0123456789",
            "controller-revision-hash": "demo-prefill-6d5f",
        },
    },
    "status": {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {"name": "vllm", "image": "i", "restartCount": 1, "started": True, "state": {"running": {}}},
        ],
    },
}


def test_a_started_engine_is_told_from_a_starting_one() -> None:
    assert observe.pod(POD).containers[0].started
    waiting = {
        "name": "vllm",
        "restartCount": 0,
        "started": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    starting = {**POD, "status": {**POD["status"], "containerStatuses": [waiting]}}
    assert not observe.pod(starting).containers[0].started


def test_a_pod_knows_the_template_it_was_made_from() -> None:
    assert observe.pod(POD).controller_revision == "demo-prefill-6d5f"
    labels = {"app.kubernetes.io/component": "router", "pod-template-hash": "75d8"}
    assert observe.pod({**POD, "metadata": {**POD["metadata"], "labels": labels}}).controller_revision == "75d8"


def test_a_stateful_set_knows_the_revision_it_would_remake_pods_from() -> None:
    body = {
        "kind": "StatefulSet",
        "metadata": {"name": "demo-prefill", "uid": "u"},
        "spec": {"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 1}}},
        "status": {"replicas": 2, "readyReplicas": 1, "updatedReplicas": 1, "currentRevision": "demo-prefill-6d5f"},
    }
    workload = observe.child(body).workload
    assert workload is not None
    assert (workload.partition, workload.current_revision) == (1, "demo-prefill-6d5f")
