"""Objects as the API server shows them, and a double of the client that keeps them in memory."""

from collections.abc import AsyncIterator
from typing import Any

from kvloop.api.labels import API_VERSION, FIELD_MANAGER, KIND, MANAGED_BY, MANAGED_BY_VALUE, NAME
from kvloop.controller.cache import Key
from kvloop.kube.errors import ConflictError, KubeError, NotFoundError

Body = dict[str, Any]
KEY = Key("team", "chat")
OWNER = "uid-of-chat"
READS = frozenset({"get", "list", "warnings"})


def owned(kind: str, name: str, spec: Body | None = None, owner: str | None = OWNER) -> Body:
    """A child as the planner makes it."""
    meta: Body = {
        "name": name,
        "namespace": KEY.namespace,
        "labels": {MANAGED_BY: MANAGED_BY_VALUE, NAME: KEY.name},
    }
    if owner:
        meta["ownerReferences"] = [{"kind": KIND, "name": KEY.name, "uid": owner, "controller": True}]
    return {"apiVersion": "v1", "kind": kind, "metadata": meta, "spec": spec or {}}


def resource(generation: int = 1, version: int = 1, status: Body | None = None) -> Body:
    """The custom resource."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": KEY.name,
            "namespace": KEY.namespace,
            "uid": OWNER,
            "generation": generation,
            "resourceVersion": str(version),
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {"model": {"name": "m"}},
        "status": status or {"observedGeneration": -1},
    }


def pod(name: str, component: str = "prefill", version: int = 1, **status: Any) -> Body:
    """A pod; `status` is its status."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": KEY.namespace,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": "2030-01-02T03:04:05Z",
            "labels": {NAME: KEY.name, "app.kubernetes.io/component": component},
        },
        "spec": {},
        "status": status,
    }


def node(name: str, zone: str = "us-east-1a", *, ready: bool = True, **allocatable: str) -> Body:
    """A node of type p5en.48xlarge with `gpu` and `efa` devices."""
    labels = {"topology.kubernetes.io/zone": zone, "node.kubernetes.io/instance-type": "p5en.48xlarge"}
    devices = {"gpu": "nvidia.com/gpu", "efa": "vpc.amazonaws.com/efa"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "192", "memory": "1Ti"}
            | {devices[key]: count for key, count in allocatable.items()},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def fields(value: Any) -> Any:
    """What server-side apply would record as owned: the names."""
    return {f"f:{key}": fields(inner) for key, inner in value.items()} if isinstance(value, dict) else {}


class MemoryKube:
    """Keeps objects as applied, with versions, uids and field ownership; notes calls; writes fail where told to."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Body] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.errors: dict[tuple[str, str], KubeError] = {}
        self.events: dict[str, list[Body]] = {}
        self.version = 100

    def put(self, body: Body, *, manager: str = FIELD_MANAGER) -> Body:
        """Store an object as if `manager` had applied it."""
        self.version += 1
        kind, meta = body["kind"], body["metadata"]
        before = self.objects.get((kind, meta["name"]), {"metadata": {}})["metadata"]
        stored = body | {
            "metadata": meta
            | {
                "uid": before.get("uid", f"uid-{meta['name']}-{self.version}"),
                "resourceVersion": str(self.version),
                "managedFields": [
                    {
                        "manager": manager,
                        "operation": "Apply",
                        "time": "2030-01-02T03:04:05Z",
                        "fieldsV1": {"f:spec": fields(body.get("spec", {}))},
                    }
                ],
            }
        }
        self.objects[kind, meta["name"]] = stored
        return stored

    def edit(self, kind: str, name: str, field: str) -> Body:
        """Somebody changes a field of spec, and so takes it from us."""
        body = self.objects[kind, name]
        self.version += 1
        (entry,) = body["metadata"]["managedFields"]
        left = {key: value for key, value in entry["fieldsV1"]["f:spec"].items() if key != f"f:{field}"}
        meta = body["metadata"] | {
            "resourceVersion": str(self.version),
            "managedFields": [entry | {"fieldsV1": {"f:spec": left}}],
        }
        self.objects[kind, name] = body | {"metadata": meta}
        return self.objects[kind, name]

    def writes(self) -> list[tuple[str, str, str]]:
        """Calls that write, and forget all calls."""
        found = [call for call in self.calls if call[0] not in READS]
        self.calls.clear()
        return found

    def _call(self, verb: str, kind: str, name: str) -> None:
        self.calls.append((verb, kind, name))
        if verb not in READS and (error := self.errors.get((kind, name))):
            raise error

    async def apply(self, body: Body, *, new: bool = False) -> Body:
        name = body["metadata"]["name"]
        self._call("apply", body["kind"], name)
        if new and (body["kind"], name) in self.objects:
            raise ConflictError("modified", 409)
        return self.put(body)

    async def apply_status(self, body: Body) -> Body:
        self._call("status", body["kind"], body["metadata"]["name"])
        stored = self.objects[body["kind"], body["metadata"]["name"]]
        self.version += 1
        meta = stored["metadata"] | {"resourceVersion": str(self.version)}
        self.objects[body["kind"], meta["name"]] = stored | {"status": body["status"], "metadata": meta}
        return self.objects[body["kind"], meta["name"]]

    async def apply_scale(self, kind: str, namespace: str, name: str, replicas: int) -> None:
        self._call(f"scale {replicas}", kind, name)

    async def create(self, body: Body) -> Body:
        self._call("create", body["kind"], body["metadata"]["name"])
        return body

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        self._call("delete", kind, name)
        if (kind, name) not in self.objects:
            raise NotFoundError("gone", 404)
        del self.objects[kind, name]

    async def get(self, kind: str, namespace: str, name: str) -> Body:
        self._call("get", kind, name)
        if (kind, name) not in self.objects:
            raise NotFoundError("gone", 404)
        return self.objects[kind, name]

    async def metadata(self, kind: str, namespace: str | None, selector: str) -> AsyncIterator[Body]:
        self._call("list", kind, namespace or "")
        for (of, _), body in list(self.objects.items()):
            if of == kind:
                yield body["metadata"]

    async def nodes(self, selector: str) -> AsyncIterator[Body]:
        self._call("list", "Node", selector)
        if error := self.errors.get(("Node", "")):
            raise error
        for (kind, _), body in list(self.objects.items()):
            if kind == "Node":
                yield body

    async def warnings(self, namespace: str, uid: str) -> list[Body]:
        self._call("warnings", "Event", uid)
        return self.events.get(uid, [])

    async def serves(self, api_version: str) -> bool:
        return True

    async def close(self) -> None:
        pass


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
