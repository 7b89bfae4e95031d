"""A cluster in words: what the operator would have observed, made step by step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvloop.api.labels import ENGINE_CONTAINER, ROUTER_CONTAINER, TEMPLATE_HASH, Role
from kvloop.api.v1alpha1 import DisaggregatedInference
from kvloop.plan.config import PlanConfig
from kvloop.plan.desired import Desired, plan
from kvloop.plan.observed import Child, ChildRef, Container, Observed, Pod, Workload
from kvloop.plan.status import status

Make = Callable[..., DisaggregatedInference]
START = 1_700_000_000.0


class World:
    """One resource, its pods by name, and whatever else is told with `facts` (fields of Observed)."""

    def __init__(self, make: Make, config: PlanConfig, spec: dict[str, Any]) -> None:
        self._make, self._config = make, config
        self._spec = spec
        self._metadata: dict[str, Any] = {"generation": 1}
        self.now = START
        self.pods: dict[str, Pod] = {}
        self.children: dict[ChildRef, Child] = {}
        self.facts: dict[str, Any] = {}
        self.latest: dict[str, Any] = {"observedGeneration": -1}
        self._templates: dict[tuple[int, str], dict[str, Any]] = {}

    @property
    def cr(self) -> DisaggregatedInference:
        return self._make(self._spec, **self._metadata)

    @property
    def body(self) -> dict[str, Any]:
        """The resource as a client sees it."""
        return {"metadata": dict(self._metadata), "spec": self._spec, "status": self.latest}

    @property
    def observed(self) -> Observed:
        return Observed(now=self.now, children=self.children, pods=tuple(self.pods.values()), **self.facts)

    @property
    def desired(self) -> Desired:
        return plan(self.cr, self.observed, self._config)

    def edit(self, **spec: Any) -> None:
        """Another spec; the status is as it was."""
        self._spec = {**self._spec, **spec}
        self._metadata["generation"] += 1

    def delete(self) -> None:
        self._metadata |= {"deletionTimestamp": "2024-01-01T00:00:00Z", "generation": self._metadata["generation"] + 1}

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def report(self) -> dict[str, Any]:
        """The operator writes the status."""
        self.latest = status(self.cr, self.observed, self.desired, self.latest)
        return self.latest

    def condition(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.latest["conditions"] if each["type"] == kind)
        return found

    # What the cluster does.

    def make_children(self) -> None:
        """Every child is there, and its controller has seen it."""
        for body in self.desired.children:
            ref = ChildRef(body["kind"], body["metadata"]["name"])
            workload = None
            if ref.kind in {"StatefulSet", "Deployment"}:
                replicas = body["spec"].get("replicas", 1)
                before = self.children.get(ref)
                workload = before.workload if before else Workload(replicas)
                assert workload
                workload = replace(workload, replicas=replicas)
            self.children[ref] = Child(ref, f"uid-{ref.name}", "1-2-3", 1, 1, workload=workload)

    def set_workload(self, kind: str, name: str, **changes: Any) -> None:
        child = self.children[ChildRef(kind, name)]
        assert child.workload
        self.children[child.ref] = replace(child, workload=replace(child.workload, **changes))

    def engine(self, role: Role, number: int, **changes: Any) -> Pod:
        """A pod of the newest template; still to be scheduled unless `changes` say more."""
        template = self._template(role)
        pod = Pod(
            name=f"chat-{role}-{number}",
            uid=f"{role}-{number}-{self.now}",
            component=role,
            revision=template["labels"]["kvloop.io/revision"],
            template=template["annotations"][TEMPLATE_HASH],
            controller_revision=template["annotations"][TEMPLATE_HASH],
        )
        self.pods[pod.name] = replace(pod, **changes)
        return self.pods[pod.name]

    def _template(self, role: Role) -> dict[str, Any]:
        """Metadata of the newest pod template; planned once for each spec, since that takes a while."""
        generation = self._metadata["generation"]
        if (generation, role) not in self._templates:
            for child in self.desired.children:
                if child["kind"] == "StatefulSet":
                    found = child["spec"]["template"]["metadata"]
                    self._templates[generation, found["labels"]["kvloop.io/role"]] = found
        return self._templates[generation, role]

    def change(self, name: str, **changes: Any) -> None:
        self.pods[name] = replace(self.pods[name], **changes)

    def container(self, name: str, **changes: Any) -> None:
        """The state of a pod's only container."""
        pod = self.pods[name]
        of = ENGINE_CONTAINER if pod.component in set(Role) else ROUTER_CONTAINER
        self.change(name, scheduled=True, ready=False, containers=(Container(of, "registry.example/i:1", **changes),))

    def all_load(self) -> None:
        """Every wanted engine has a running pod that is not ready."""
        for role, spec in zip(Role, (self.cr.spec.prefill, self.cr.spec.decode), strict=True):
            for number in range(spec.replicas or 0):
                self.engine(role, number)
                self.container(f"chat-{role}-{number}", running=True)

    def ready(self, *names: str) -> None:
        for name in names:
            container = Container(ENGINE_CONTAINER, running=True, started=True)
            self.change(name, ready=True, scheduled=True, phase="Running", unschedulable="", containers=(container,))

    def router_ready(self) -> None:
        replicas = self.cr.spec.router.replicas
        for number in range(replicas):
            name = f"chat-router-abc-{number}"
            self.pods[name] = Pod(name, name, "router", phase="Running", ready=True, scheduled=True)
        self.set_workload(
            "Deployment", "chat-router", replicas=replicas, pods=replicas, ready=replicas, updated=replicas
        )

    def all_ready(self) -> None:
        """As wanted, in every part."""
        self.make_children()
        self.all_load()
        self.ready(*(name for name, pod in self.pods.items() if pod.component in set(Role)))
        self.router_ready()


@pytest.fixture
def world(make: Make, config: PlanConfig) -> Callable[..., World]:
    """A world without children; the spec is merged over a small one."""
    return lambda **spec: World(make, config, spec)


@pytest.fixture
def healthy(world: Callable[..., World]) -> Callable[..., World]:
    """A world in which all is as wanted, and the status says so."""

    def build(**spec: Any) -> World:
        made = world(**spec)
        made.all_ready()
        made.report()
        return made

    return build
