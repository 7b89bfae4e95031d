"""What the namespace and the rights of whoever asks permit."""

from collections.abc import Iterable, Sequence
from typing import Final

from kvloop.api.labels import Role
from kvloop.api.validate import quantity
from kvloop.cli.checks.finding import Finding, fail, ok, unseen, warn
from kvloop.cli.checks.nodes import requests
from kvloop.kube.client import Body
from kvloop.kube.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from kvloop.kube.kinds import CUSTOM_RESOURCE, NAMESPACE, POD, RESOURCE_QUOTA
from kvloop.kube.session import Session
from kvloop.plan.scope import Scope

_WANTED: Final = (("patch", CUSTOM_RESOURCE, ""), ("get", POD, "log"), ("create", POD, "proxy"))
_ENFORCE: Final = "pod-security.kubernetes.io/enforce"


async def admission(session: Session, namespace: str, body: Body) -> Finding:
    """The API server itself would take the resource: rules, rights, policies and quotas of objects."""
    plain = {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "metadata": {"name": body["metadata"]["name"], "namespace": namespace},
        "spec": body["spec"],
    }
    try:
        await session.dry_run(CUSTOM_RESOURCE, namespace, plain)
    except InvalidError as error:
        return fail("Admission", error.message, "correct the resource as it says")
    except ForbiddenError as error:
        if error.by_admission:
            return fail("Admission", error.message, "satisfy the policy or quota, or have it changed")
        return warn("Admission", error.message, "whoever applies the resource needs that right")
    except NotFoundError as error:
        return fail("Admission", error.message, "create the namespace, and install the CRD")
    except ConflictError as error:
        return warn("Admission", error.message, "try again")
    return ok("Admission", "the API server would take the resource")


async def rights(session: Session, namespace: str) -> Finding:
    """Whoever asks may do what kvloop's commands and an edit of the resource need."""
    missing = [
        f"{verb} {kind.plural}{subresource and f'/{subresource}'}"
        for verb, kind, subresource in _WANTED
        if not await session.may(verb, kind, namespace, subresource)
    ]
    if missing:
        return warn("Rights", f"you may not {', '.join(missing)}", "ask for these rights, or somebody who has them")
    return ok("Rights", "you may edit the resource, and read and ask its pods")


async def pod_security(session: Session, scope: Scope) -> Finding:
    """The namespace's Pod Security level lets the engines in."""
    try:
        labels = (await session.get(NAMESPACE, None, scope.namespace))["metadata"].get("labels") or {}
    except NotFoundError:
        return fail("Pod Security", f"there is no namespace {scope.namespace}", "create it")
    except ForbiddenError as error:
        return unseen("Pod Security", error.message)
    level = labels.get(_ENFORCE, "privileged")
    if any(scope.resolved.efa[role] for role in Role) and level != "privileged":
        return fail(
            "Pod Security",
            f"{level} refuses IPC_LOCK, which engines on EFA need",
            f"label the namespace {_ENFORCE}=privileged",
        )
    if level == "restricted":
        return fail(
            "Pod Security",
            "restricted refuses images that run as root, as vLLM's do",
            f"label the namespace {_ENFORCE}=baseline",
        )
    return ok("Pod Security", level)


async def quotas(session: Session, namespace: str, children: Sequence[Body], pods: Sequence[Body]) -> list[Finding]:
    """Quotas leave room for the pods that are not there yet."""
    try:
        found = await session.list(RESOURCE_QUOTA, namespace)
    except ForbiddenError as error:
        return [unseen("Quotas", error.message)]
    planned = [
        (each["spec"]["template"]["spec"], each["spec"].get("replicas", 1))
        for each in children
        if "template" in each.get("spec", {})
    ]
    more = _total(planned, 1) + _total([(pod["spec"], 1) for pod in pods], -1)
    bare = {name for name in ("cpu", "memory") if any(name not in requests(pod) for pod, _ in planned)}
    return [_quota(quota, more, bare) for quota in found]


def _total(pods: Iterable[tuple[Body, int]], sign: int) -> list[tuple[str, float]]:
    return [(name, sign * count * amount) for pod, count in pods for name, amount in requests(pod).items()]


def _quota(quota: Body, more: Sequence[tuple[str, float]], bare: set[str]) -> Finding:
    title = f"Quota {quota['metadata']['name']}"
    status = quota.get("status") or {}
    for limit, hard in (status.get("hard") or {}).items():
        name = limit.removeprefix("requests.")
        wanted = sum(amount for each, amount in more if each == name)
        left = quantity(str(hard)) - quantity(str((status.get("used") or {}).get(limit, 0)))
        if wanted > max(0, left):
            detail = f"{wanted:,.5g} of {name} more are needed, and {left:,.5g} are left"
            return fail(title, detail, "raise the quota, or ask for less")
        if name in bare:
            detail = f"refuses pods that do not say how much {name} they ask for"
            return fail(title, detail, f"set resources.requests.{name} of prefill, decode and router")
    return ok(title, "leaves room")
