"""A cluster in memory, in the place of the one that a kubeconfig names."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvloop.api.labels import API_VERSION, KIND
from kvloop.cli.main import app
from kvloop.kube.errors import KubeError, NotFoundError
from kvloop.kube.kinds import Kind
from kvloop.kube.session import Session

Body = dict[str, Any]


class Cluster(Session):
    """Keeps objects by kind, namespace and name; `errors` has what reads of a kind end with."""

    def __init__(self, *objects: Body) -> None:
        self.server = "https://cluster"
        self.namespace = "team"
        self.objects: dict[tuple[str, str | None, str], Body] = {}
        self.errors: dict[str, KubeError] = {}
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

    async def list(self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = "") -> list[Body]:
        self._check(kind)
        wanted = dict(each.split("=") for each in labels.split(",") if each)
        return [
            body
            for (of, where, _), body in self.objects.items()
            if of == kind.kind
            and namespace in {None, where}
            and wanted.items() <= body["metadata"].get("labels", {}).items()
        ]

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
