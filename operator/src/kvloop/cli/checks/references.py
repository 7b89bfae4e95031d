"""What the pods need that is not made by the operator: Secrets, ConfigMaps, volumes, accounts, classes."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from kvloop.cli.checks.finding import Finding, fail, ok, unseen
from kvloop.kube.client import Body
from kvloop.kube.errors import ForbiddenError
from kvloop.kube.kinds import KINDS, PERSISTENT_VOLUME_CLAIM, PRIORITY_CLASS, SECRET, Kind
from kvloop.kube.session import Session


class Reference(NamedTuple):
    """An object that has to be there."""

    kind: Kind
    name: str


_IN_PODS: Final = {"serviceAccountName": KINDS["ServiceAccount"], "priorityClassName": PRIORITY_CLASS}
_NAMED: Final = {
    "secretKeyRef": (SECRET, "name"),
    "secretRef": (SECRET, "name"),
    "secret": (SECRET, "secretName"),
    "configMapKeyRef": (KINDS["ConfigMap"], "name"),
    "configMapRef": (KINDS["ConfigMap"], "name"),
    "configMap": (KINDS["ConfigMap"], "name"),
    "persistentVolumeClaim": (PERSISTENT_VOLUME_CLAIM, "claimName"),
}
"""Fields of a pod's containers and volumes that name an object, and in which field of theirs."""


async def references(session: Session, namespace: str, children: Sequence[Body]) -> list[Finding]:
    """What the planned pods name is there. Of Secrets only the existence is looked at, never the content."""
    found = []
    for reference in named(children):
        kind = reference.kind
        title = f"{kind.kind} {reference.name}"
        try:
            there = await session.exists(kind, None if kind is PRIORITY_CLASS else namespace, reference.name)
        except ForbiddenError as error:
            found.append(unseen(title, error.message))
            continue
        where = "" if kind is PRIORITY_CLASS else f" in the namespace {namespace}"
        found.append(ok(title, "is there") if there else fail(title, "is missing", f"create it{where}"))
    return found


def named(children: Sequence[Body]) -> list[Reference]:
    """What pods name, without what is made beside them, and without what may be missing."""
    own = {(each["kind"], each["metadata"]["name"]) for each in children}
    pods = [each["spec"]["template"]["spec"] for each in children if "template" in each.get("spec", {})]
    found = dict.fromkeys(reference for pod in pods for reference in _in_pod(pod))
    return [each for each in found if (each.kind.kind, each.name) not in own]


def _in_pod(pod: Body) -> Iterator[Reference]:
    for field, kind in _IN_PODS.items():
        if pod.get(field):
            yield Reference(kind, pod[field])
    for each in pod.get("imagePullSecrets") or ():
        yield Reference(SECRET, each["name"])
    for part in ("initContainers", "containers", "volumes"):
        yield from _below(pod.get(part))


def _below(value: Any) -> Iterator[Reference]:
    if isinstance(value, list):
        for item in value:
            yield from _below(item)
    elif isinstance(value, dict):
        for field, inner in value.items():
            kind, name = _NAMED.get(field, (None, ""))
            if kind and isinstance(inner, dict) and name in inner:
                if not inner.get("optional"):
                    yield Reference(kind, inner[name])
            elif kind and isinstance(inner, dict) and "name" in inner and not inner.get("optional"):
                yield Reference(kind, inner["name"])  # projected volumes call a Secret by `name`
            else:
                yield from _below(inner)
