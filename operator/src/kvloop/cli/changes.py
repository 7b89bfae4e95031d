"""What applying a custom resource would change: a comparison of the plan with what is there. Pure."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from kvloop.api.labels import APPLIED_HASH, TEMPLATE_HASH, Role
from kvloop.api.v1alpha1 import DisaggregatedInference, parse
from kvloop.api.validate import defaulted, validate
from kvloop.cli.output import to_yaml
from kvloop.controller.apply import digest_of
from kvloop.kube.client import Body
from kvloop.kube.fields import applied
from kvloop.plan import names
from kvloop.plan.config import PlanConfig
from kvloop.plan.desired import Desired, plan
from kvloop.plan.observed import ChildRef, Observed
from kvloop.plan.rollout import steps
from kvloop.plan.scope import Scope
from kvloop.plan.sides import sides
from kvloop.plan.statefulset import template_hash


class Action(StrEnum):
    """What happens to a child."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"


@dataclass(frozen=True)
class Change:
    """One child that does not stay as it is; `diff` is unified, over YAML with sorted keys."""

    kind: str
    name: str
    action: Action
    diff: str


@dataclass(frozen=True)
class Changes:
    """All that would come of a resource.

    `spec` are the fields that differ, `words` what becomes of the pods, `rollout` its steps, for people; `restarts` are
    the engine pods that are replaced, by name.
    """

    namespace: str
    name: str
    spec: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)
    rollout: list[str] = field(default_factory=list)
    children: list[Change] = field(default_factory=list)


def changes(
    wanted: Body, live: Body | None, children: Sequence[Body], observed: Observed, config: PlanConfig
) -> Changes:
    """What applying `wanted` does, where `live` is the resource as it is and `children` what it owns."""
    if live:
        wanted = {**wanted, "metadata": {**wanted["metadata"], "uid": live["metadata"]["uid"]}}
    cr = parse(wanted)
    desired = plan(cr, observed, config)
    there = {_ref(child): child for child in children}
    found = list(_children(desired, there, _former(live, observed, config), cr.metadata.uid))
    engines = list(_engines(cr.metadata.name, desired, observed))
    before = {pod.revision for pod in observed.pods if pod.is_engine}
    return Changes(
        namespace=cr.metadata.namespace,
        name=cr.metadata.name,
        spec=list(_edits(defaulted(live)["spec"], defaulted(wanted)["spec"], "spec")) if live else [],
        words=list(_words(cr.metadata.name, engines, (before, desired.revision), found)),
        restarts=[name for side in engines for name in side.restarted],
        rollout=_rollout(cr, desired, observed, config) if any(side.restarted for side in engines) else [],
        children=found,
    )


def _former(live: Body | None, observed: Observed, config: PlanConfig) -> tuple[Body, ...]:
    """What the operator makes of the resource as it is; nothing if that is of another version of the CRD."""
    spec = {name: value for name, value in (live or {}).items() if name != "status"}
    return () if not live or validate(spec) else plan(parse(spec), observed, config).children


def _ref(body: Body) -> ChildRef:
    return ChildRef(body["kind"], body["metadata"]["name"])


def _children(desired: Desired, live: Mapping[ChildRef, Body], former: Sequence[Body], owner: str) -> Iterator[Change]:
    planned, were = ({_ref(body): body for body in bodies} for bodies in (desired.children, former))
    for ref, body in planned.items():
        there = live.get(ref)
        if there is None:
            yield Change(ref.kind, ref.name, Action.CREATE, _diff(ref, None, body))
        elif _digest(there) != digest_of(body) and (text := _diff(ref, _applied(there, were.get(ref)), body)):
            yield Change(ref.kind, ref.name, Action.CHANGE, text)
    for ref, body in live.items():
        owners = {each["uid"] for each in body["metadata"].get("ownerReferences") or ()}
        if ref not in planned and owner in owners:
            yield Change(ref.kind, ref.name, Action.DELETE, _diff(ref, _applied(body, were.get(ref)), None))


def _applied(there: Body, planned: Body | None) -> Body:
    """A child as it was last applied: as planned for the live resource, or else by the record of who owns what.

    The record is less exact: where a whole object is owned, it has the API server's defaults, too.
    """
    return planned if planned and _digest(there) == digest_of(planned) else applied(there)


def _digest(body: Body) -> str:
    return str((body["metadata"].get("annotations") or {}).get(APPLIED_HASH))


_DIGESTS: Final = (APPLIED_HASH, TEMPLATE_HASH)


def _comparable(body: Any, path: tuple[str, ...] = ()) -> Any:
    """Sorted, without digests, and without the partition, which tells how far a rollout is."""
    if isinstance(body, dict):
        return {
            name: value
            for name in sorted(body)
            if name not in _DIGESTS
            and (*path, name)[-2:] != ("rollingUpdate", "partition")
            and ((value := _comparable(body[name], (*path, name))) != {} or name != "annotations")
        }
    return [_comparable(item, path) for item in body] if isinstance(body, list) else body


def _diff(ref: ChildRef, old: Body | None, new: Body | None) -> str:
    title = f"{ref.kind}/{ref.name}"
    before, after = (to_yaml(_comparable(body)).splitlines(True) if body else [] for body in (old, new))
    return "".join(difflib.unified_diff(before, after, f"live/{title}", f"planned/{title}"))


def _edits(old: Any, new: Any, path: str) -> Iterator[str]:
    """Fields that differ: `path: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _edits(old.get(name), new.get(name), f"{path}.{name}")
    elif old != new:
        yield f"{path}: {_said(old)} -> {_said(new)}"


def _said(value: Any) -> str:
    return "absent" if value is None else value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class _Engines:
    """One side: pods that there are and will be, and the names of those that are replaced."""

    role: Role
    there: int
    size: int
    restarted: list[str]

    def words(self) -> Iterator[str]:
        if self.size != self.there:
            yield f"{self.role}: {self.there or 'no'} -> {self.size} pods"
        if self.restarted:
            yield f"{self.role}: restarts {len(self.restarted)} of {self.there} pods: {', '.join(self.restarted)}"


def _engines(name: str, desired: Desired, observed: Observed) -> Iterator[_Engines]:
    planned = {_ref(body): body for body in desired.children}
    for role in Role:
        ref = ChildRef("StatefulSet", names.role(name, role))
        body, workload, pods = planned[ref], observed.workload(ref.kind, ref.name), observed.pods_of(role)
        size = body["spec"].get("replicas", workload.replicas if workload else 1)
        template = template_hash(body)
        outdated = [pod.name for pod in pods if pod.ordinal < size and pod.template != template]
        yield _Engines(role, len(pods), size, outdated)


def _words(
    name: str, engines: Sequence[_Engines], revisions: tuple[set[str], str], found: Sequence[Change]
) -> Iterator[str]:
    """What becomes of the pods."""
    for side in engines:
        yield from side.words()
    before, after = revisions
    restarted = {side.role for side in engines if side.restarted}
    if restarted and after not in before:
        yield f"new revision {after}: engines exchange KV within a revision only, so both sides change together"
    if Role.DECODE in restarted:
        yield "conversations that a restarted decode engine holds are computed anew at their next turn"
    changed = {ChildRef(each.kind, each.name) for each in found if each.action is Action.CHANGE}
    if ChildRef("Deployment", names.router(name)) in changed:
        yield "router: replaces its pods one after another; running streams finish first"
    elif ChildRef("ConfigMap", names.router(name)) in changed:
        yield "router: reads its new settings without a restart, within a minute or so"
    if ChildRef("Deployment", names.valkey(name)) in changed:
        yield "valkey: restarts, and forgets the conversations that it remembers"


def _rollout(cr: DisaggregatedInference, desired: Desired, observed: Observed, config: PlanConfig) -> list[str]:
    """The steps in which engines are replaced."""
    if cr.spec.rollout.paused:
        return ["held: spec.rollout.paused is true"]
    planned = {_ref(body): body for body in desired.children}
    templates = {
        role: template_hash(planned[ChildRef("StatefulSet", names.role(cr.metadata.name, role))]) for role in Role
    }
    scope = Scope.of(cr, config)
    shown = steps(sides(scope, desired.revision, templates, observed))
    return [each.message for each in shown if each.message]
