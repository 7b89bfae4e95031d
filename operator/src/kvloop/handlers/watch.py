"""What Kopf watches, and what it does with it: hand it on. Nothing here waits, or can fail on a well-formed object."""

from collections.abc import Mapping
from typing import Any, cast

import kopf

from kvloop.controller.operator import Operator
from kvloop.kube.kinds import CUSTOM_RESOURCE, LEASE, POD


def registry(operator: Operator) -> kopf.OperatorRegistry:
    """The handlers, bound to an operator; what is watched of each kind is in `settings`."""
    handlers = kopf.OperatorRegistry()

    async def seen(event: kopf.RawEvent, **_: Any) -> None:
        take = operator.forget if event["type"] == "DELETED" else operator.see
        take(event["object"])
        let_go(event["object"])

    async def cleanup(**_: Any) -> None:
        await operator.stop()

    for kind in (CUSTOM_RESOURCE, POD, LEASE, *operator.children):
        kopf.on.event(kind.group, kind.version, kind.plural, registry=handlers)(seen)
    kopf.on.cleanup(registry=handlers)(cleanup)
    kopf.on.login(registry=handlers)(login)
    return handlers


def let_go(body: Mapping[str, Any]) -> None:
    """Drop all of an object that Kopf has no more use for.

    Kopf's views of an object refer to each other, so that each object would live on until the collector of garbage
    comes; a thousand of them are as large as our whole cache.
    """
    kept = cast("dict[str, Any]", body)
    for part in kept.keys() - {"apiVersion", "kind", "metadata"}:
        del kept[part]
    kept["metadata"].pop("managedFields", None)


def login(**options: Any) -> kopf.ConnectionInfo | None:
    """The same credentials as the API client's: the pod's service account, or else the kubeconfig."""
    return kopf.login_with_service_account(**options) or kopf.login_with_kubeconfig(**options)
