"""What is wrong with objects: refused, not there, or not able to make pods."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from kvloop.api.labels import Reason
from kvloop.plan.status.problem import Problem, brief
from kvloop.plan.status.view import View

_PASSING: Final = re.compile(r"failed calling webhook|exceeded quota|being terminated|timeout|timed out", re.IGNORECASE)
"""Refusals that pass by themselves, or when somebody else frees what they have."""

_REMEDIES: Final = {
    "is invalid": "Correct podTemplate.",
    "exceeded quota": "Raise the quota, or ask for less.",
    "failed calling webhook": "It is tried again.",
    "serviceaccount": "Create the ServiceAccount, or correct spec.engine.serviceAccountName.",
}
"""What to do, by words of the API server."""

_KINDS: Final = {"Secret": Reason.SECRET_NOT_FOUND, "ConfigMap": Reason.CONFIG_MAP_NOT_FOUND}


def refused(view: View) -> Problem | None:
    """The API server refused a child; one that can never be accepted comes first."""
    failures = sorted(view.observed.apply_failures, key=lambda failure: not failure.terminal)
    for failure in failures:
        by_policy = failure.reason is Reason.ADMISSION_REFUSED and not _PASSING.search(failure.message)
        return Problem(failure.reason, brief(failure.message, 2000), stalls=failure.terminal or by_policy)
    return None


def pods_refused(view: View) -> Problem | None:
    """The API server refused the pods of a workload."""
    for ref in view.children:
        workload = view.observed.workload(ref.kind, ref.name)
        if workload and workload.create_failure and workload.pods < workload.replicas:
            failure = workload.create_failure
            remedy = next(
                (remedy for words, remedy in _REMEDIES.items() if words in failure), "Change the policy or the spec."
            )
            return Problem(
                Reason.INVALID_POD_TEMPLATE if "is invalid" in failure else Reason.ADMISSION_REFUSED,
                f"{ref.kind} {ref.name} cannot make its pods: {brief(failure)}. {remedy}",
                stalls=not _PASSING.search(failure),
            )
    return None


def reference_missing(view: View) -> Problem | None:
    """A pod waits for a Secret or ConfigMap."""
    waits = any(not any(each.running for each in pod.containers) for pod in view.waiting_for)
    if not waits or not view.observed.missing:
        return None
    parts = [part for child in view.children.values() for part in _parts(child)]
    for missing in sorted(view.observed.missing, key=lambda each: (each.kind, each.name, each.key)):
        if missing.name in parts:  # an edit may have taken the reference away already
            what = f'{missing.kind} "{missing.name}"'
            problem = (
                f'{what} has no key "{missing.key}": add it' if missing.key else _absent(what, missing.name, parts)
            )
            return Problem(_KINDS[missing.kind], f"{problem}; the pods that wait for it then start.", stalls=True)
    return None


def _absent(what: str, name: str, parts: Iterable[Any]) -> str:
    """That a Secret or ConfigMap is not there, and the keys that pods read of it: as variables, or as files."""
    keys = set()
    for part in parts:
        if isinstance(part, dict) and part.get("name") == name and "key" in part:
            keys.add(part["key"])
        if isinstance(part, dict) and part.get("secretName") == name:
            keys |= {item["key"] for item in part.get("items", ())}
    having = f" with the key {' and '.join(map(json.dumps, sorted(keys)))}" if keys else ""
    return f"{what} is not there: create it{having}"


def _parts(value: Any) -> Iterator[Any]:
    """The value, and everything in it."""
    yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _parts(part)


def not_made(view: View) -> Problem | None:
    """Children are not there yet, or their controllers have not seen the newest version."""
    absent = [ref for ref in view.children if ref not in view.observed.children]
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        return Problem(Reason.PROGRESSING, f"Making {absent[0].kind} {absent[0].name}{more}.")
    for ref in view.children:
        child = view.observed.children[ref]
        if child.workload and child.observed_generation < child.generation:
            return Problem(Reason.PROGRESSING, f"{ref.kind} {ref.name} is being updated.")
    return None
