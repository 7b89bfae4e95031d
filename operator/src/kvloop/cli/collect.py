"""What several commands read of a cluster: the operator, and the children and pods of a resource."""

import asyncio
import io
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import Final

from kvloop.api.labels import APP_COMPONENT, APP_NAME, MANAGED_BY_VALUE, NAME
from kvloop.controller import observe
from kvloop.controller.settings import Settings, parse
from kvloop.kube.client import Body
from kvloop.kube.errors import NotFoundError
from kvloop.kube.kinds import CHILDREN, KINDS, POD, Kind
from kvloop.kube.session import Session
from kvloop.plan.observed import ChildRef, Observed

OPERATOR: Final = f"{APP_NAME}={MANAGED_BY_VALUE},{APP_COMPONENT}=operator"
"""Labels of the operator's Deployment and pod."""


@dataclass(frozen=True)
class Installation:
    """An operator that is installed. `settings` is None where they are not understood, as of another version."""

    deployment: Body
    settings: Settings | None

    @property
    def namespace(self) -> str:
        """Its own."""
        return str(self.deployment["metadata"]["namespace"])

    @property
    def image(self) -> str:
        """What it runs."""
        return str(_container(self.deployment)["image"])

    @property
    def version(self) -> str:
        """Of the release it was installed from; of its image's tag, where that is not told."""
        labels = self.deployment["metadata"].get("labels") or {}
        return str(labels.get("app.kubernetes.io/version") or self.image.partition("@")[0].rpartition(":")[2])

    @property
    def ready(self) -> bool:
        """Whether it runs."""
        return bool((self.deployment.get("status") or {}).get("readyReplicas"))

    def serves(self, namespace: str) -> bool:
        """Whether it looks after resources of a namespace, as far as it can be told."""
        return self.settings is None or not self.settings.namespace or namespace in self.settings.namespace


async def installations(session: Session) -> list[Installation]:
    """All operators of the cluster: several, where each looks after some namespaces.

    Raises:
        ForbiddenError: whoever asks may not list Deployments of all namespaces.
    """
    found = await session.list(KINDS["Deployment"], labels=OPERATOR)
    return [Installation(deployment, _settings(deployment)) for deployment in found]


def _settings(deployment: Body) -> Settings | None:
    container = _container(deployment)
    environment = {each["name"]: each.get("value", "") for each in container.get("env") or ()}
    environment["POD_NAMESPACE"] = environment.get("POD_NAMESPACE") or deployment["metadata"]["namespace"]
    try:
        with redirect_stderr(io.StringIO()):
            return parse(container.get("args") or [], environment)
    except SystemExit:
        return None


def _container(deployment: Body) -> Body:
    container: Body = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


async def children_of(session: Session, namespace: str, name: str) -> list[Body]:
    """All children of a resource, by label; some may be of another owner."""
    found = await asyncio.gather(*(labelled(session, kind, namespace, name) for kind in CHILDREN))
    return [child for children in found for child in children]


async def labelled(session: Session, kind: Kind, namespace: str, name: str) -> list[Body]:
    """Objects of a kind that are a resource's, by label; none of a kind that this cluster does not serve."""
    try:
        return await session.list(kind, namespace, labels=f"{NAME}={name}")
    except NotFoundError:
        if kind.optional:
            return []
        raise


async def pods_of(session: Session, namespace: str, name: str) -> list[Body]:
    """All pods of a resource, in order of their names."""
    return sorted(await labelled(session, POD, namespace, name), key=lambda each: str(each["metadata"]["name"]))


def observed(children: list[Body], pods: list[Body], now: float) -> Observed:
    """What the operator makes of these objects."""
    records = [observe.child(body) for body in children]
    return Observed(
        now=now,
        children={ChildRef(record.ref.kind, record.ref.name): record for record in records},
        pods=tuple(observe.pod(body) for body in pods),
    )
