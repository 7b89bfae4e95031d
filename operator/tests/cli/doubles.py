"""A cluster in memory, in the place of the one that a kubeconfig names."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvloop import __version__
from kvloop.api.labels import API_VERSION, APPLIED_HASH, FIELD_MANAGER, KIND
from kvloop.api.v1alpha1 import parse
from kvloop.cli.main import app
from kvloop.controller.apply import digest_of
from kvloop.controller.settings import Settings, plan_config
from kvloop.kube.errors import KubeError, NotFoundError, UnavailableError
from kvloop.kube.kinds import Kind
from kvloop.kube.session import Session
from kvloop.kube.transport import Answer
from kvloop.plan.desired import plan

Body = dict[str, Any]


class Cluster(Session):
    """Keeps objects by kind, namespace and name; `errors` has what reads of a kind end with."""

    def __init__(self, *objects: Body) -> None:
        self.server = "https://cluster"
        self.namespace = "team"
        self.objects: dict[tuple[str, str | None, str], Body] = {}
        self.errors: dict[str, KubeError] = {}
        self.refusal: KubeError | None = None
        """What a dry run ends with."""
        self.denied: set[tuple[str, str]] = set()
        """Verbs and resources to which there is no right."""
        self.kubernetes = "v1.34.2"
        self.apis: set[str] = set()
        self.texts: dict[str, str] = {}
        """Logs by pod and container, and answers by pod and path."""
        for each in objects:
            self.add(each)

    def add(self, body: Body) -> None:
        """Store an object."""
        meta = body["metadata"]
        self.objects[body["kind"], meta.get("namespace"), meta["name"]] = json.loads(json.dumps(body))

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Body:
        self._check(kind)
        try:
            return self.objects[kind.kind, namespace, name]
        except KeyError:
            raise NotFoundError(f'{kind.plural} "{name}" not found', 404) from None

    async def list(self, kind: Kind, namespace: str | None = None, *, labels: str = "") -> list[Body]:
        self._check(kind)
        wanted = dict(each.split("=") for each in labels.split(",") if each)
        return [
            body
            for (of, where, _), body in self.objects.items()
            if of == kind.kind
            and namespace in {None, where}
            and wanted.items() <= body["metadata"].get("labels", {}).items()
        ]

    async def serves(self, api_version: str) -> bool:
        return api_version in self.apis

    async def version(self) -> str:
        return self.kubernetes

    async def logs(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        return self._text(f"{pod} {container}" + " before" * previous)

    async def ask(
        self,
        namespace: str,
        pod: str,
        port: int,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        return Answer(200, self._text(f"{pod} {port}{path}"))

    async def exists(self, kind: Kind, namespace: str | None, name: str) -> bool:
        self._check(kind)
        return (kind.kind, namespace, name) in self.objects

    async def dry_run(self, kind: Kind, namespace: str, body: Body) -> Body:
        if self.refusal:
            raise self.refusal
        return body

    async def may(self, verb: str, kind: Kind, namespace: str, subresource: str = "") -> bool:
        return (verb, f"{kind.plural}/{subresource}".rstrip("/")) not in self.denied

    async def run(self, namespace: str, pod: str, container: str, command: Sequence[str], line: str) -> str:
        raise UnavailableError(f"a command in {pod} failed")

    def _text(self, key: str) -> str:
        if key not in self.texts:
            raise UnavailableError(f"error trying to reach service: {key}", 503)
        return self.texts[key]

    def _check(self, kind: Kind) -> None:
        if error := self.errors.get(kind.kind):
            raise error


def resource(name: str = "chat", namespace: str = "team", status: Body | None = None, **spec: Any) -> Body:
    """A custom resource of small simulated engines."""
    role = {"replicas": 1, "gpus": 0}
    base = {
        "model": {"name": "sim", "source": {"path": "/models/sim"}},
        "engine": {"image": "enginesim:1", "version": "0.32.0"},
        "prefill": role,
        "decode": role,
        "transfer": {"fabric": "UCX"},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-of-{name}",
            "generation": 1,
            "creationTimestamp": "2030-01-02T03:04:05Z",
        },
        "spec": base | spec,
        "status": status or {"observedGeneration": -1},
    }


def run(*arguments: object, env: Mapping[str, str] | None = None) -> Result:
    """Run `kvloop`."""
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False, env=env)


def connect(monkeypatch: pytest.MonkeyPatch, cluster: Session | KubeError) -> None:
    """Let commands find this cluster, or this error."""

    async def open_(kubeconfig: str | None = None, context: str | None = None) -> Session:
        if isinstance(cluster, KubeError):
            raise cluster
        return cluster

    monkeypatch.setattr(Session, "open", open_)


CONFIG = plan_config(Settings(), pod_monitors=False)


def started(body: Body, *, ready: bool = True) -> list[Body]:
    """The resource, its children and its engines' pods, as the operator of the default settings has made them."""
    children = [stored(child) for child in plan(parse(body), None, CONFIG).children]
    return [
        body,
        *children,
        *(pod for child in children if child["kind"] == "StatefulSet" for pod in _pods(child, ready)),
    ]


def stored(child: Body) -> Body:
    """A child as the API server keeps it: with defaults, and the record of who owns what."""
    meta = child["metadata"]
    sent = child | {"metadata": meta | {"annotations": {**meta.get("annotations", {}), APPLIED_HASH: digest_of(child)}}}
    record = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": _fields(sent)}
    body: Body = json.loads(json.dumps(sent))
    body["metadata"] |= {"uid": f"uid-of-{meta['name']}", "generation": 1, "managedFields": [record]}
    if "spec" in body:
        body["spec"]["byDefault"] = True
    if body["kind"] == "StatefulSet":
        body["spec"]["template"]["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
        body["status"] = {"replicas": body["spec"]["replicas"], "readyReplicas": body["spec"]["replicas"]}
    return body


def _fields(value: Any) -> Any:
    return {f"f:{key}": _fields(inner) for key, inner in value.items()} if isinstance(value, dict) else {}


def _pods(workload: Body, ready: bool) -> list[Body]:
    template = workload["spec"]["template"]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": template["metadata"]
            | {
                "name": f"{workload['metadata']['name']}-{number}",
                "namespace": workload["metadata"]["namespace"],
                "uid": f"uid-{number}",
                "creationTimestamp": "2030-01-02T03:04:05Z",
            },
            "spec": template["spec"],
            "status": {
                "phase": "Running",
                "podIP": f"10.0.0.{number + 1}",
                "conditions": [{"type": kind, "status": str(ready)} for kind in ("PodScheduled", "Ready")],
                "containerStatuses": [
                    {"name": each["name"], "started": ready, "state": {"running": {}}, "restartCount": 0}
                    for each in template["spec"]["containers"]
                ],
            },
        }
        for number in range(workload["spec"]["replicas"])
    ]


def operator(*args: str, namespace: str = "kvloop-system", image: str = f"kvloop/operator:{__version__}") -> Body:
    """The operator's Deployment, as installed."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "kvloop-operator",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": "kvloop", "app.kubernetes.io/component": "operator"},
        },
        "spec": {"template": {"spec": {"containers": [{"name": "operator", "image": image, "args": list(args)}]}}},
        "status": {"readyReplicas": 1},
    }
