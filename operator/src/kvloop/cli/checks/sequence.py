"""All checks in order: what later ones rest on comes first."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from kvloop.api.labels import Condition
from kvloop.api.v1alpha1 import DisaggregatedInference, parse
from kvloop.api.v1alpha1.resource import PodMonitorMode
from kvloop.cli.checks import access, cluster, nodes, references, spec
from kvloop.cli.checks.finding import Finding, fail, ok, unseen, warn
from kvloop.cli.checks.live import live
from kvloop.cli.collect import Installation, observed, pods_of
from kvloop.cli.progress import progress
from kvloop.cli.source import in_namespace, problems
from kvloop.cli.target import find
from kvloop.controller.settings import Settings, plan_config
from kvloop.kube.client import Body
from kvloop.kube.errors import ForbiddenError
from kvloop.kube.kinds import KINDS, NODE, POD_MONITOR
from kvloop.kube.session import Session
from kvloop.plan.claims import uses_claim
from kvloop.plan.desired import plan
from kvloop.plan.scope import Scope


@dataclass(frozen=True)
class Subject:
    """What is checked: the resource of that name, or the one in `body` before it is applied, or only the cluster."""

    namespace: str
    name: str | None
    body: Body | None


async def findings(session: Session, subject: Subject, *, offline: bool) -> AsyncIterator[Finding]:
    """Everything that can be said. Raises `NoSuchResourceError`."""
    body = await _body(session, subject)
    namespace = body["metadata"]["namespace"] if body else subject.namespace
    yield await cluster.kubernetes(session)
    yield await cluster.crd(session, namespace)
    finding, installed = await cluster.operator(session, namespace)
    yield finding
    if body is None:
        return
    wanted = in_namespace(body, namespace)
    if wrong := problems(wanted):
        for problem in wrong:
            yield fail("Resource", problem, "correct it")
        return
    yield ok("Resource", "keeps all rules")
    if subject.body:
        yield await access.admission(session, namespace, wanted)
    scope = await _scope(session, parse(wanted), installed)
    pods = await pods_of(session, namespace, scope.name)
    async for each in _resource(session, scope, pods):
        yield each
    if not offline and subject.name:
        async for each in _running(session, scope, pods, body):
            yield each


async def _body(session: Session, subject: Subject) -> Body | None:
    if subject.body:
        return in_namespace(subject.body, subject.namespace)
    return await find(session, subject.namespace, subject.name) if subject.name else None


async def _resource(session: Session, scope: Scope, pods: list[Body]) -> AsyncIterator[Finding]:
    """Of a valid resource: itself, and what its pods will find."""
    children = plan(scope.cr, observed([], pods, time.time()), scope.config).children
    for finding in (
        *spec.spec(scope),
        *await _apis(session, scope),
        *await references.references(session, scope.namespace, children),
        await access.rights(session, scope.namespace),
        await access.pod_security(session, scope),
        *await access.quotas(session, scope.namespace, children, pods),
    ):
        yield finding
    try:
        for finding in nodes.nodes(scope, children, await session.list(NODE)):
            yield finding
    except ForbiddenError as error:
        yield unseen("Nodes", error.message)


async def _scope(session: Session, cr: DisaggregatedInference, installed: Installation | None) -> Scope:
    settings = (installed.settings if installed else None) or Settings()
    return Scope.of(cr, plan_config(settings, pod_monitors=await session.serves(POD_MONITOR.api_version)))


async def _apis(session: Session, scope: Scope) -> list[Finding]:
    """Optional APIs that the resource asks for."""
    claims = KINDS["ResourceClaimTemplate"].api_version
    if uses_claim(scope) and not await session.serves(claims):
        return [fail("APIs", f"the cluster does not serve {claims}", "set transfer.efa.mechanism to DevicePlugin")]
    wants = scope.spec.monitoring.pod_monitor is PodMonitorMode.ENABLED
    if wants and not scope.config.api_available.pod_monitor:
        return [warn("APIs", "there are no PodMonitors", "install the Prometheus operator, or set podMonitor to Auto")]
    return []


async def _running(session: Session, scope: Scope, pods: list[Body], body: Body) -> AsyncIterator[Finding]:
    conditions = {each["type"]: each for each in (body.get("status") or {}).get("conditions") or ()}
    ready = conditions.get(Condition.READY, {})
    if ready.get("status") != "True" or ready.get("observedGeneration") != body["metadata"]["generation"]:
        why = f"{ready.get('reason', 'nobody has looked at it')}: {ready.get('message', '')}".strip(": ")
        yield warn("Running", f"is not Ready ({why})", "wait, or see the reason in the troubleshooting guide")
        return
    with progress("asking engines") as advance:
        async for finding in live(session, scope, pods, advance):
            yield finding
