"""The pods of an engine."""

from collections.abc import Callable
from typing import Any

import pytest

from kvloop.api.labels import Role
from kvloop.plan.pod_template import GRACE_MARGIN_SECONDS, PRE_STOP_SECONDS

Part = Callable[..., dict[str, Any]]
EFA = {"transfer": {"fabric": "EFA"}, "placement": {"instanceType": "p5en.48xlarge"}}
DRA = {"transfer": {"fabric": "EFA", "efa": {"mechanism": "DynamicResourceAllocation"}}} | {
    "placement": {"instanceType": "p5en.48xlarge"}
}


def test_the_engine_is_the_first_container(container: Part) -> None:
    vllm = container({"engine": {"imagePullPolicy": "Never"}})
    assert (vllm["name"], vllm["image"], vllm["imagePullPolicy"]) == ("vllm", "registry.example/vllm:0.32.0", "Never")
    assert vllm["command"] == ["vllm", "serve"]
    assert vllm["ports"] == [
        {"name": "http", "containerPort": 8000},
        {"name": "side-channel", "containerPort": 5600},
    ]


def test_a_drain_ends_within_the_grace_period(engine: Part) -> None:
    pod = engine({"engine": {"shutdownTimeoutSeconds": 300}})["spec"]
    vllm = pod["containers"][0]
    pre_stop = vllm["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert "--shutdown-timeout=300" in vllm["args"]
    assert pod["terminationGracePeriodSeconds"] == pre_stop + 300 + 15 == PRE_STOP_SECONDS + 300 + GRACE_MARGIN_SECONDS


def test_probes_leave_time_to_load_weights_and_end_a_dead_engine_soon(container: Part) -> None:
    vllm = container()
    startup, readiness, liveness = (vllm[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness"))
    assert startup["periodSeconds"] * startup["failureThreshold"] == 7200
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < 30
    assert liveness["periodSeconds"] * liveness["failureThreshold"] == 60
    assert all(probe["httpGet"] == {"path": "/health", "port": "http"} for probe in (startup, readiness, liveness))


def test_nothing_reaches_the_engine_from_the_cluster_unasked(engine: Part) -> None:
    pod = engine()["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False  # a Service named vllm would set VLLM_PORT
    assert "serviceAccountName" not in pod
    assert engine({"engine": {"serviceAccountName": "s3"}})["spec"]["serviceAccountName"] == "s3"


@pytest.mark.parametrize("spec", [EFA, DRA])
def test_efa_gets_pinned_memory_and_no_more(spec: dict[str, Any], engine: Part) -> None:
    pod = engine(spec)["spec"]
    assert pod["containers"][0]["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }
    assert not pod.keys() & {"hostNetwork", "hostIPC", "hostPID"}
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_without_efa_no_capability_is_left(engine: Part) -> None:
    pod = engine()["spec"]
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


def test_devices_come_from_one_mechanism_only(engine: Part) -> None:
    plugin, claimed = engine(EFA)["spec"], engine(DRA)["spec"]
    assert plugin["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1, "vpc.amazonaws.com/efa": 2}
    assert "resourceClaims" not in plugin
    resources = claimed["containers"][0]["resources"]
    assert not {"nvidia.com/gpu", "vpc.amazonaws.com/efa"} & (resources["requests"].keys() | resources.keys())
    assert "limits" not in resources
    assert resources["claims"] == [{"name": claimed["resourceClaims"][0]["name"]}]


@pytest.mark.parametrize(("gpus", "size"), [(0, "2Gi"), (1, "20Gi"), (4, "20Gi"), (8, "64Gi")])
def test_shared_memory_is_in_memory_and_bounded(gpus: int, size: str, engine: Part) -> None:
    pod = engine({"prefill": {"gpus": gpus}})["spec"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}} in pod["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]  # noqa: S108 (a mount)


def test_weights_on_a_volume_are_mounted_read_only(engine: Part) -> None:
    spec = {"model": {"source": {"path": None, "volume": {"claimName": "weights", "path": "m"}}}}
    pod = engine(spec)["spec"]
    claim = {"claimName": "weights", "readOnly": True}
    assert {"name": "model", "persistentVolumeClaim": claim} in pod["volumes"]
    [mount] = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "model"]
    assert mount["readOnly"] is True
    assert pod["containers"][0]["args"][0] == f"{mount['mountPath']}/m"


def test_the_plugin_is_a_folder_on_the_python_path(engine: Part) -> None:
    pod = engine()["spec"]
    [mount] = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "engine-plugin"]
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "engine-plugin"]
    assert {"name": "PYTHONPATH", "value": mount["mountPath"]} in pod["containers"][0]["env"]
    assert {item["path"] for item in volume["configMap"]["items"]} == {
        "kvloop/__init__.py",
        "kvloop/engine/plugin.py",
        "kvloop_engine-1.dist-info/METADATA",
        "kvloop_engine-1.dist-info/entry_points.txt",
    }


def test_the_users_template_is_merged(engine: Part) -> None:
    template = {
        "metadata": {"labels": {"team": "search", "kvloop.io/role": "decode"}, "annotations": {"note": "x"}},
        "spec": {
            "containers": [
                {"name": "vllm", "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                {"name": "logs", "image": "logs:1"},
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "nodeSelector": {"pool": "gpu"},
        },
    }
    merged = engine({"prefill": {"podTemplate": template}})
    assert merged["metadata"]["labels"]["team"] == "search"
    assert merged["metadata"]["labels"]["kvloop.io/role"] == "prefill"
    assert merged["metadata"]["annotations"]["note"] == "x"
    assert [container["name"] for container in merged["spec"]["containers"]] == ["vllm", "logs"]
    assert {"name": "data", "mountPath": "/data"} in merged["spec"]["containers"][0]["volumeMounts"]
    assert merged["spec"]["nodeSelector"] == {"pool": "gpu"}


def test_the_hash_tells_templates_apart(engine: Part) -> None:
    def hash_of(spec: dict[str, Any] | None = None, role: Role = Role.PREFILL) -> str:
        value: str = engine(spec, role)["metadata"]["annotations"]["kvloop.io/template-hash"]
        return value

    assert hash_of() == hash_of()
    assert hash_of() == hash_of({"prefill": {"replicas": 7}, "rollout": {"paused": True}})
    assert hash_of() != hash_of(role=Role.DECODE)
    assert hash_of() != hash_of({"prefill": {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}})
    assert hash_of() != hash_of({"engine": {"image": "registry.example/vllm:0.33.0"}})
