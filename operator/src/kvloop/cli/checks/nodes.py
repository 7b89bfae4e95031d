"""Nodes: whether they could take the engines, if they were empty. Pure: the scheduler has the last word."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvloop.api.labels import Role
from kvloop.api.v1alpha1.placement import SameZone
from kvloop.api.v1alpha1.pod import EFA_RESOURCE
from kvloop.api.validate import quantity
from kvloop.cli.checks.finding import Finding, fail, ok, warn
from kvloop.kube.client import Body
from kvloop.plan import names
from kvloop.plan.placement import ZONE
from kvloop.plan.scope import Scope

_TITLE: Final = "Nodes"
_AUTOSCALER: Final = "an autoscaler would have to bring some; else correct spec.placement, or add nodes"


@dataclass(frozen=True)
class Engines:
    """The pods of one side: what each asks for, how many there are, and where they may go."""

    role: Role
    count: int
    asks: Mapping[str, float]
    selector: Mapping[str, str]
    tolerations: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, role: Role, workload: Body) -> "Engines":
        """Of a planned StatefulSet."""
        pod = workload["spec"]["template"]["spec"]
        return cls(
            role, workload["spec"].get("replicas", 1), requests(pod), pod.get("nodeSelector") or {},
            pod.get("tolerations") or (),
        )  # fmt: skip

    def selects(self, node: Body) -> bool:
        """Whether a node has the labels."""
        labels: dict[str, str] = node["metadata"].get("labels") or {}
        return self.selector.items() <= labels.items()

    def taints(self, node: Body) -> list[str]:
        """What keeps the pods from a node: its taints that they do not tolerate."""
        spec = node.get("spec") or {}
        keeping = [each for each in spec.get("taints") or () if each["effect"] != "PreferNoSchedule"]
        return [each["key"] for each in keeping if not any(_tolerates(one, each) for one in self.tolerations)]


def requests(pod: Body) -> dict[str, float]:
    """What a pod asks for: of each resource the sum over its containers; limits where there is no request."""
    found: defaultdict[str, float] = defaultdict(float, pods=1)
    for container in pod["containers"]:
        resources = container.get("resources") or {}
        for name, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            found[name] += quantity(str(amount))
    return dict(found)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in {None, "", taint["key"]}
    return (toleration.get("key"), toleration.get("value", "")) == (taint["key"], taint.get("value", ""))


def nodes(scope: Scope, children: Sequence[Body], found: Sequence[Body]) -> Iterator[Finding]:
    """What the cluster's nodes could take of the planned engines."""
    workloads = {each["metadata"]["name"]: each for each in children if each["kind"] == "StatefulSet"}
    sides = [Engines.of(role, workloads[names.role(scope.name, role)]) for role in Role]
    sides = [side for side in sides if side.count]
    lacking = [finding for side in sides if (finding := _lack(side, found))]
    yield from lacking
    if sides and not lacking:
        yield _room(scope, sides, found)


def _lack(side: Engines, found: Sequence[Body]) -> Finding | None:
    """Why no node at all could take a pod."""
    title = f"{_TITLE} for {side.role}"
    selected = [node for node in found if side.selects(node)]
    if not selected:
        labels = ", ".join(f"{name}={value}" for name, value in side.selector.items())
        return warn(title, f"none has the labels {labels}" if labels else "there are none", _AUTOSCALER)
    open_ = [node for node in selected if not side.taints(node)]
    if not open_:
        taints = sorted({taint for node in selected for taint in side.taints(node)})
        return fail(title, f"{len(selected)} are tainted with {', '.join(taints)}", "add spec.placement.tolerations")
    for name, amount in side.asks.items():
        most = max(_free(node).get(name, 0) for node in open_)
        if most < amount:
            return _short(title, name, amount, most, len(open_))
    if not any(_fits(side, _free(node)) for node in open_):
        return warn(title, "none has enough of everything that a pod asks for", "lower resources, or add larger nodes")
    return None


def _short(title: str, name: str, amount: float, most: float, count: int) -> Finding:
    detail = f"a pod asks for {amount:,.0f} of {name}, and none of {count} has more than {most:,.0f}"
    if name == EFA_RESOURCE and not most:
        return fail(title, detail, "install the EFA device plugin, on instances with EFA interfaces")
    if name == EFA_RESOURCE:
        return fail(title, detail, f"set transfer.efa.devicesPerPod to {most:.0f} or less")
    if not most:
        return fail(title, detail, f"install the device plugin that offers {name}")
    return fail(title, detail, "ask for less, or add larger nodes")


def _room(scope: Scope, sides: Sequence[Engines], found: Sequence[Body]) -> Finding:
    """How many of all engines would fit at once; in one zone, if they must be in one."""
    one_zone = scope.spec.placement.same_zone is SameZone.REQUIRED
    zones: defaultdict[str, list[Body]] = defaultdict(list)
    for node in found:
        zones[(node["metadata"].get("labels") or {}).get(ZONE, "") if one_zone else ""].append(node)
    counts = {zone: _placed(sides, within) for zone, within in zones.items()}
    best = max(counts, key=counts.__getitem__)
    wanted = sum(side.count for side in sides)
    where = f" in zone {best}" if best and one_zone else ""
    if counts[best] >= wanted:
        return ok(_TITLE, f"room for all {wanted} engines{where}, if nobody else takes it")
    return warn(_TITLE, f"room for {counts[best]} of {wanted} engines{where}, even if empty", _AUTOSCALER)


def _placed(sides: Sequence[Engines], within: Sequence[Body]) -> int:
    """How many engines find a node, each the first that has room."""
    free = [(node, _free(node)) for node in within]
    placed = 0
    for side in sides:
        for _ in range(side.count):
            room = (left for node, left in free if side.selects(node) and not side.taints(node) and _fits(side, left))
            if (left := next(room, None)) is not None:
                placed += 1
                for name, amount in side.asks.items():
                    left[name] -= amount
    return placed


def _free(node: Body) -> dict[str, float]:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {name: float(quantity(str(amount))) for name, amount in allocatable.items()}


def _fits(side: Engines, free: Mapping[str, float]) -> bool:
    return all(free.get(name, 0) >= amount for name, amount in side.asks.items())
