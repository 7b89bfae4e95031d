"""`kvloop bundle`: all that helps, and nothing that is secret or was said."""

import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvloop.kube.errors import ForbiddenError

from .doubles import Body, Cluster, connect, operator, resource, run, started

S = "Canary0123456789"
"""A secret, or something that was said."""


def event(number: int, uid: str, message: str) -> Body:
    meta = {"name": f"e{number}", "namespace": "team", "creationTimestamp": f"2030-01-02T03:04:0{number}Z"}
    return {"kind": "Event", "metadata": meta, "involvedObject": {"uid": uid}, "message": message}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """With a secret wherever one can be."""
    secrets: list[Body] = [{"name": "MINE", "value": S}, {"name": "VLLM_API_KEY", "value": S}]
    sidecar = {"name": "tail", "image": "x", "args": ["--password", S], "env": secrets}
    template = {"metadata": {"annotations": {"my/token": S}}, "spec": {"containers": [sidecar]}}
    role: dict[str, Any] = {"replicas": 1, "gpus": 0, "podTemplate": template}
    engine = {"image": "enginesim:1", "version": "0.32.0", "env": secrets, "args": [f"--my-api-key={S}"]}
    chat = resource(engine=engine, prefill=role, decode=role)
    chat["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": S}
    cluster = Cluster(*started(chat), operator(), {"kind": "Secret", "metadata": {"name": S, "namespace": "team"}})
    router_pod = {
        "kind": "Pod",
        "metadata": {
            "name": "chat-router-1",
            "namespace": "team",
            "uid": "r",
            "labels": {"kvloop.io/name": "chat", "app.kubernetes.io/component": "router"},
        },
        "spec": {"containers": [{"name": "router"}], "nodeName": "node"},
        "status": {"containerStatuses": [{"name": "router", "restartCount": 1}]},
    }
    operator_pod = {
        "kind": "Pod",
        "metadata": {
            "name": "kvloop-operator-1",
            "namespace": "kvloop-system",
            "uid": "o",
            "labels": {"app.kubernetes.io/name": "kvloop", "app.kubernetes.io/component": "operator"},
        },
        "spec": {"containers": [{"name": "operator"}]},
    }
    node = {"kind": "Node", "metadata": {"name": "node", "labels": {"topology.kubernetes.io/zone": "a"}}, "spec": {}}
    cluster.add(node | {"status": {"allocatable": {"nvidia.com/gpu": "8"}, "images": [S]}})
    for each in (
        router_pod,
        operator_pod,
        event(2, "r", f"second, password={S}"),
        event(1, "uid-of-chat", "first"),
        event(3, "of another", S),
    ):
        cluster.add(each)
    about = {"namespace": "team", "name": "chat"}
    cluster.texts = {
        "chat-router-1 router": '{"arm":"reused","promptTokens":12}\n',
        "chat-router-1 router before": "it crashed\n",
        "chat-router-1 9090/metrics": "kvloop_router_turns_total 1.0\n",
        "chat-router-1 9090/reuse": '{"version": 2}',
        "kvloop-operator-1 operator": "\n".join(
            json.dumps(line)
            for line in (
                {"message": "of chat", "object": about},
                {"message": S, "object": about | {"name": "other"}},
                {"message": "of none"},
            )
        )
        + "\nplain text",
    }
    for role_name in ("prefill", "decode"):
        pod = f"chat-{role_name}-0"
        cluster.texts |= {
            f"{pod} vllm": f"started\nnon-default args: {{'api_key': '{S}'}}\nReceived request: prompt: '{S}'\n",
            f"{pod} tail": f"token={S}\n",
            f"{pod} 8000/metrics": "vllm:prompt_tokens_total 1.0\n",
        }
    connect(monkeypatch, cluster)
    return cluster


def read(path: Path) -> dict[str, str]:
    """Texts by path within the archive."""
    with tarfile.open(path) as archive:
        found = {}
        for member in archive:
            file = archive.extractfile(member)
            assert file
            found[member.name.partition("/")[2]] = file.read().decode()
    return found


def test_everything_is_there_and_nothing_leaks(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    result = run("bundle", "chat", "--out", path)
    assert result.exit_code == 0, result.output
    found = read(path)
    assert {
        "README.txt",
        "contents.txt",
        "resource.yaml",
        "versions.yaml",
        "events.yaml",
        "nodes/node.yaml",
        "children/statefulset-chat-prefill.yaml",
        "children/configmap-chat-router.yaml",
        "pods/pod-chat-decode-0.yaml",
        "logs/chat-prefill-0.vllm.log",
        "logs/chat-prefill-0.tail.log",
        "logs/chat-router-1.router.log",
        "logs/chat-router-1.router.previous.log",
        "metrics/chat-decode-0.txt",
        "metrics/chat-router-1.txt",
        "reuse/chat-router-1.json",
        "operator/kvloop-system.kvloop-operator-1.log",
    } <= found.keys()
    assert not [name for name, text in found.items() if S in text]
    assert not [name for name in found if "secret" in name.lower()]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "started\n" in found["logs/chat-prefill-0.vllm.log"]
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(found["events.yaml"])] == ["e1", "e2"]
    assert yaml.safe_load(found["nodes/node.yaml"])["status"]["allocatable"] == {"nvidia.com/gpu": "8"}
    log = found["operator/kvloop-system.kvloop-operator-1.log"].splitlines()
    assert [line for line in log if "of " in line or "plain" in line] == log
    assert len(log) == 3
    versions = yaml.safe_load(found["versions.yaml"])
    assert (versions["kubernetes"], versions["operators"][0]["namespace"]) == ("v1.34.2", "kvloop-system")
    assert all(name in found["contents.txt"] for name in found if name != "contents.txt")


def test_what_cannot_be_read_is_told_and_the_rest_is_written(cluster: Cluster, tmp_path: Path) -> None:
    cluster.errors = {"Node": ForbiddenError("may not get nodes"), "Deployment": ForbiddenError("may not list")}
    del cluster.texts["chat-decode-0 vllm"]
    result = run("bundle", "chat", "--out", tmp_path / "b.tar.gz", "-o", "json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert set(told["missing"]) == {"deployments", "nodes/node.yaml", "logs/chat-decode-0.vllm.log"}
    found = read(tmp_path / "b.tar.gz")
    assert set(told["members"]) == set(found)
    assert "missing  nodes/node.yaml: may not get nodes" in found["contents.txt"]


@pytest.mark.parametrize(
    "engine", [{"args": ["--enable-log-requests"]}, {"env": [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]}]
)
def test_logs_of_engines_that_log_prompts_stay_where_they_are(cluster: Cluster, tmp_path: Path, engine: Body) -> None:
    cluster.objects = {key: body for key, body in cluster.objects.items() if key[0] != "Pod"}
    for each in started(resource(engine={"image": "enginesim:1", "version": "0.32.0", **engine})):
        cluster.add(each)
    result = run("bundle", "chat", "--out", tmp_path / "b.tar.gz", "-o", "json")
    missing = json.loads(result.stdout)["missing"]
    assert missing == {
        f"logs/chat-{role}-0": "the engine logs what is asked and answered" for role in ("prefill", "decode")
    }
    assert not [name for name in read(tmp_path / "b.tar.gz") if name.startswith("logs/")]


def test_where_it_goes(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("bundle", "chat").exit_code == 0
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("kvloop-team-chat-")
    again = run("bundle", "chat", "--out", path)
    assert (again.exit_code, "File exists" in again.stderr) == (2, True)
    assert run("bundle", "other").exit_code == 2
