"""The record of ownership, in the form in which Kubernetes 1.35 writes it."""

from typing import Any

from kvloop.kube.fields import applied

LIVE: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {
        "name": "chat-prefill",
        "namespace": "team",
        "uid": "1",
        "labels": {"kvloop.io/name": "chat", "of": "somebody"},
        "ownerReferences": [{"uid": "7", "kind": "X", "name": "chat"}],
        "managedFields": [
            {
                "manager": "kvloop",
                "operation": "Apply",
                "fieldsV1": {
                    "f:metadata": {
                        "f:labels": {"f:kvloop.io/name": {}},
                        "f:ownerReferences": {'k:{"uid":"7"}': {}},
                    },
                    "f:spec": {
                        "f:template": {
                            "f:spec": {
                                "f:containers": {
                                    'k:{"name":"vllm"}': {
                                        ".": {},
                                        "f:name": {},
                                        "f:args": {},
                                        "f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}},
                                        "f:ports": {
                                            'k:{"containerPort":8000,"protocol":"TCP"}': {
                                                ".": {},
                                                "f:containerPort": {},
                                                "f:name": {},
                                            }
                                        },
                                    }
                                },
                                "f:volumes": {'k:{"name":"cache"}': {".": {}, "f:emptyDir": {}, "f:name": {}}},
                            }
                        }
                    },
                },
            },
            {
                "manager": "kvloop",
                "operation": "Apply",
                "subresource": "scale",
                "fieldsV1": {"f:spec": {"f:replicas": {}}},
            },
            {"manager": "hpa", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        ],
    },
    "spec": {
        "replicas": 7,
        "template": {
            "spec": {
                "dnsPolicy": "ClusterFirst",
                "containers": [
                    {"name": "istio", "image": "of/somebody"},
                    {
                        "name": "vllm",
                        "args": ["a", "b"],
                        "imagePullPolicy": "Always",
                        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                        "ports": [{"containerPort": 8000, "name": "http", "protocol": "TCP"}],
                    },
                ],
                "volumes": [{"name": "cache", "emptyDir": {}}],
            }
        },
    },
    "status": {"replicas": 7},
}


def test_what_was_applied_is_what_the_record_names() -> None:
    assert applied(LIVE) == {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": "chat-prefill",
            "namespace": "team",
            "labels": {"kvloop.io/name": "chat"},
            "ownerReferences": [{"uid": "7", "kind": "X", "name": "chat"}],
        },
        "spec": {
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "vllm",
                            "args": ["a", "b"],
                            "env": [{"name": "A", "value": "1"}],
                            "ports": [{"containerPort": 8000, "name": "http"}],
                        }
                    ],
                    "volumes": [{"name": "cache", "emptyDir": {}}],
                }
            }
        },
    }


def test_sets_hold_values() -> None:
    record = {"manager": "kvloop", "operation": "Apply", "fieldsV1": {"f:finalizers": {'v:"ours"': {}}}}
    body = {
        "apiVersion": "v1",
        "kind": "X",
        "finalizers": ["theirs", "ours"],
        "metadata": {"name": "x", "managedFields": [record]},
    }
    assert applied(body)["finalizers"] == ["ours"]


def test_of_an_object_that_we_never_applied_is_nothing_ours() -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "b"}}
    assert applied(body) == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
