"""From objects as the API server gives them to the small records that the planner looks at; absent fields are fine."""

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from kvloop.api.labels import APP_COMPONENT, APPLIED_HASH, FIELD_MANAGER, REVISION, TEMPLATE_HASH
from kvloop.plan.observed import Child, ChildRef, Container, Missing, NodeKind, Pod, Workload
from kvloop.plan.placement import INSTANCE_TYPE, ZONE

Body = Mapping[str, Any]


class Warned(NamedTuple):
    """An Event of type Warning about some object."""

    reason: str
    message: str


class Offer(NamedTuple):
    """A node's zone and type, and its extended resources by name: how many it has allocatable."""

    zone: str
    instance_type: str
    extended: tuple[tuple[str, int], ...]


_MISSING_OBJECT = re.compile(r'(?P<kind>secret|configmap) "(?P<name>[^"]+)" not found')
_MISSING_KEY = re.compile(r"couldn't find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) [^/\s]+/(?P<name>\S+)")
_KINDS = {"secret": "Secret", "configmap": "ConfigMap"}

_one = sys.intern
"""Of equal texts that many records have, one: each JSON brings its own, and records live as long as their objects."""
_NO_NODE = re.compile(r"0/\d+ nodes are available: (.+?)\.?")
_PREEMPTION = re.compile(r"\. (?:[^.]*, )?preemption:")
"""Where the scheduler's last sentence begins: what preemption, or taking back claims, could not do is a repetition."""


def child(body: Body) -> Child:
    """Record of a child."""
    meta, status = body["metadata"], body.get("status") or {}
    owners = (_one(owner["uid"]) for owner in meta.get("ownerReferences") or () if owner.get("controller"))
    return Child(
        ref=ChildRef(_one(body["kind"]), meta["name"]),
        uid=meta["uid"],
        owner_uid=next(owners, None),
        generation=meta.get("generation", 0),
        observed_generation=status.get("observedGeneration", 0),
        applied_hash=(meta.get("annotations") or {}).get(APPLIED_HASH, ""),
        workload=_workload(body) if body["kind"] in {"StatefulSet", "Deployment"} else None,
    )


def _workload(body: Body) -> Workload:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    rolling = (spec.get("updateStrategy") or {}).get("rollingUpdate") or {}
    template = (spec.get("template") or {}).get("metadata") or {}
    failure = (c for c in status.get("conditions") or () if c["type"] == "ReplicaFailure" and c["status"] == "True")
    return Workload(
        replicas=spec.get("replicas", 1),
        partition=rolling.get("partition", 0),
        template=_one((template.get("annotations") or {}).get(TEMPLATE_HASH, "")),
        pods=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current_revision=_one(status.get("currentRevision", "")),
        update_revision=_one(status.get("updateRevision", "")),
        create_failure=next((condition.get("message", "") for condition in failure), ""),
    )


def with_create_failure(record: Child, warnings: Iterable[Warned]) -> Child:
    """The record of a StatefulSet with why it cannot make pods: its status does not tell it, as a Deployment's does."""
    failure = next((warning.message for warning in warnings if warning.reason == "FailedCreate"), "")
    if record.workload is None or not failure:
        return record
    return replace(record, workload=replace(record.workload, create_failure=failure))


def with_probe_failure(record: Pod, warnings: Iterable[Warned]) -> Pod:
    """The record of a pod with what its readiness probe came to: its status tells only that it is not ready."""
    failures = (each.message.partition(": ") for each in warnings if each.reason == "Unhealthy")
    failure = next((how for probe, _, how in failures if probe.startswith("Readiness ")), "")
    return replace(record, probe_failure=failure) if failure and not record.ready else record


def pod(body: Body) -> Pod:
    """Record of a pod."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels = meta.get("labels") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    scheduled, ready = conditions.get("PodScheduled", {}), conditions.get("Ready", {})
    statuses = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        component=_one(labels.get(APP_COMPONENT, "")),
        revision=_one(labels.get(REVISION, "")),
        template=_one((meta.get("annotations") or {}).get(TEMPLATE_HASH, "")),
        controller_revision=_one(labels.get("controller-revision-hash") or labels.get("pod-template-hash", "")),
        claim_templates=tuple(each.get("resourceClaimTemplateName", "") for each in spec.get("resourceClaims") or ()),
        phase=_one(status.get("phase", "Pending")),
        ready=ready.get("status") == "True",
        ready_changed_at=seconds(ready["lastTransitionTime"]) if ready.get("lastTransitionTime") else 0.0,
        scheduled=scheduled.get("status") == "True",
        deleting="deletionTimestamp" in meta,
        created_at=seconds(meta["creationTimestamp"]),
        node=_one(spec.get("nodeName", "")),
        unschedulable=without_counts(scheduled.get("message", "")) if scheduled.get("status") == "False" else "",
        reason=_one(status.get("reason", "")),
        message=status.get("message", ""),
        containers=tuple(_container(each) for each in statuses),
    )


def without_counts(words: str) -> str:
    """The scheduler's words, without of how many nodes each is true, and in an order that is not by these numbers.

    They change with each node that comes or goes anywhere in the cluster. Left out here, they bring no pass, list of
    nodes or write of status, nor can the status hold old ones; the pod's own condition tells them.
    """
    said = _PREEMPTION.split(words)[0]
    if not (found := _NO_NODE.fullmatch(said)):
        return said
    reasons = {re.sub(r"^\d+ ", "", reason) for reason in re.split(r", (?=\d+ )", found[1])}
    return f"no nodes are available: {', '.join(sorted(reasons))}"


def _container(status: Body) -> Container:
    state = status.get("state") or {}
    waiting, running = state.get("waiting") or {}, state.get("running") or {}
    terminated = state.get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
    return Container(
        name=_one(status["name"]),
        image=_one(status.get("image", "")),
        running="running" in state,
        started_at=seconds(running["startedAt"]) if running.get("startedAt") else 0.0,
        started=bool(status.get("started")),
        restarts=status.get("restartCount", 0),
        waiting=waiting.get("reason", ""),
        message=waiting.get("message", ""),
        terminated=terminated.get("reason", ""),
        exit_code=terminated.get("exitCode"),
    )


def offer(body: Body) -> Offer | None:
    """What a node has to give; None if it takes no pods now."""
    if not _takes_pods(body):
        return None
    labels = body["metadata"].get("labels") or {}
    has = (body.get("status") or {}).get("allocatable") or {}
    extended = ((name, int(count)) for name, count in has.items() if "/" in name and count.isdecimal())
    return Offer(labels.get(ZONE, ""), labels.get(INSTANCE_TYPE, ""), tuple(sorted(extended)))


def node_kinds(offers: Iterable[Offer]) -> tuple[NodeKind, ...]:
    """Nodes that are alike together."""
    counts = Counter(offers)
    return tuple(NodeKind(each.zone, each.instance_type, counts[each], dict(each.extended)) for each in sorted(counts))


def _takes_pods(body: Body) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and not (body.get("spec") or {}).get("unschedulable")


def missing(messages: Iterable[str]) -> frozenset[Missing]:
    """Secrets and ConfigMaps, or keys of them, that the kubelet says it looked for in vain.

    Its words are read so that the operator needs no right to read Secrets.
    """
    return frozenset(
        Missing(_KINDS[found["kind"].lower()], found["name"], found.groupdict().get("key") or "")
        for message in messages
        for pattern in (_MISSING_OBJECT, _MISSING_KEY)
        if (found := pattern.search(message))
    )


def owned_fields(body: Body) -> str:
    """Digest of the fields that server-side apply records as ours.

    Whoever changes or removes one takes it over, so that another digest than after our last apply means: somebody
    edited what is ours. Edits of other fields, and status, do not show.
    """
    ours = _ours(body)
    return _one(hashlib.sha256(json.dumps(ours["fieldsV1"]).encode()).hexdigest()[:16]) if ours else ""


def owns_replicas(body: Body) -> bool:
    """Whether server-side apply records spec.replicas as ours."""
    ours = _ours(body)
    return bool(ours) and "f:replicas" in ours["fieldsV1"].get("f:spec", {})


def edited_after_us(body: Body) -> bool:
    """Whether anybody else wrote this object, not its status or scale, after our last apply.

    For objects that were applied before the operator started, whose `owned_fields` it has nothing to compare with. The
    record has whole seconds, and does not say whose fields were edited.
    """
    ours = _ours(body)
    if not ours:
        return True
    others = (entry for entry in body["metadata"].get("managedFields") or () if entry["manager"] != FIELD_MANAGER)
    return any(entry.get("time", "") >= ours.get("time", "") for entry in others if not entry.get("subresource"))


def _ours(body: Body) -> dict[str, Any]:
    for entry in body["metadata"].get("managedFields") or ():
        if entry["manager"] == FIELD_MANAGER and entry["operation"] == "Apply" and not entry.get("subresource"):
            return dict(entry)
    return {}


def seconds(timestamp: str) -> float:
    """Unix seconds of an RFC 3339 time."""
    return datetime.fromisoformat(timestamp).timestamp()
