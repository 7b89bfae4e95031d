"""The cluster: its API server, the CRD and the operator."""

import re
from typing import Any, Final

from kvloop import __version__
from kvloop.api.crd import definition
from kvloop.cli.checks.finding import Finding, fail, ok, unseen, warn
from kvloop.cli.collect import Installation, installations
from kvloop.controller.apply import covers
from kvloop.kube.errors import ForbiddenError, NotFoundError
from kvloop.kube.kinds import CRD, CUSTOM_RESOURCE
from kvloop.kube.session import Session

LEAST: Final = (1, 31)
"""The first Kubernetes whose CEL library knows all that the CRD's rules use."""
_INSTALL: Final = "kvloop crd | kubectl apply --server-side -f -"


async def kubernetes(session: Session) -> Finding:
    """Version of the API server."""
    text = await session.version()
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    if version < LEAST:
        return fail("Kubernetes", f"{text} is too old", f"upgrade the cluster to {LEAST[0]}.{LEAST[1]} or later")
    return ok("Kubernetes", text)


async def crd(session: Session, namespace: str) -> Finding:
    """The definition is there, and the one of this version."""
    wanted = definition()
    try:
        live = await session.get(CRD, None, wanted["metadata"]["name"])
    except NotFoundError:
        return fail("CRD", "is not installed", _INSTALL)
    except ForbiddenError as error:
        return await _served(session, namespace, error)
    if not covers(live["spec"], _stored(wanted["spec"])):
        return warn("CRD", f"is not that of kvloop {__version__}", f"if it is older than the operator: {_INSTALL}")
    return ok("CRD", f"as in kvloop {__version__}")


def _stored(value: Any) -> Any:
    """A schema as the API server keeps it: without empty `properties`."""
    if isinstance(value, dict):
        return {name: _stored(inner) for name, inner in value.items() if (name, inner) != ("properties", {})}
    return [_stored(item) for item in value] if isinstance(value, list) else value


async def _served(session: Session, namespace: str, why: ForbiddenError) -> Finding:
    try:
        await session.list(CUSTOM_RESOURCE, namespace)
    except NotFoundError:
        return fail("CRD", "is not installed", _INSTALL)
    except ForbiddenError:
        pass
    return unseen("CRD", why.message)


async def operator(session: Session, namespace: str) -> tuple[Finding, Installation | None]:
    """One operator serves the namespace, runs, and is of this version."""
    try:
        found = [each for each in await installations(session) if each.serves(namespace)]
    except ForbiddenError as error:
        return unseen("Operator", error.message), None
    if not found:
        remedy = "install it, or add the namespace to its watchNamespaces"
        return fail("Operator", f"none serves the namespace {namespace}", remedy), None
    if len(found) > 1:
        detail = f"several serve {namespace}: those in {', '.join(sorted(each.namespace for each in found))}"
        return fail("Operator", detail, "leave one, or divide the namespaces by watchNamespaces"), None
    return _running(found[0]), found[0]


def _running(found: Installation) -> Finding:
    name = f"{found.image} in {found.namespace}"
    if not found.ready:
        logs = f"kubectl logs deployment/{found.deployment['metadata']['name']} --namespace={found.namespace}"
        return fail("Operator", f"{name} does not run", f"see {logs}")
    if found.settings is None or found.version != __version__:
        remedy = "use a kvloop of the operator's version, so that both mean the same"
        return warn("Operator", f"{name} may be of another version than this kvloop, {__version__}", remedy)
    return ok("Operator", name)
