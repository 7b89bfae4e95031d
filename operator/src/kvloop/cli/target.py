"""Which cluster and namespace a command is about, and what it says where that cannot be asked."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import typer

from kvloop.api.labels import KIND, PLURAL
from kvloop.cli.exits import fail
from kvloop.kube.client import Body
from kvloop.kube.depth import any_depth
from kvloop.kube.errors import ForbiddenError, KubeError, NotFoundError, UnavailableError
from kvloop.kube.kinds import CUSTOM_RESOURCE
from kvloop.kube.session import Session

T = TypeVar("T")

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace; by default the one of the context.")
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="In all namespaces.")]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; by default the current one.")]
Kubeconfig = Annotated[str | None, typer.Option(envvar="KUBECONFIG", metavar="FILE", help="The kubeconfig to use.")]


class NoSuchResourceError(Exception):
    """There is no custom resource of that name."""


@dataclass(frozen=True)
class Target:
    """Which cluster, as the options say."""

    kubeconfig: str | None = None
    context: str | None = None

    def run(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """What `work` returns. Where the cluster lets it down, says so in one line, and what to do.

        Raises:
            typer.Exit: 2, after that line.
        """
        session: Session | None = None
        logging.getLogger("kubernetes").setLevel(logging.ERROR)  # what it warns of ends in an error of ours

        async def connected() -> T:
            nonlocal session
            async with await Session.open(self.kubeconfig, self.context) as session:
                return await work(session)

        try:
            with any_depth():
                return asyncio.run(connected())
        except NoSuchResourceError as error:
            raise fail(str(error)) from error
        except KubeError as error:
            raise fail(explain(error, session.server if session else "")) from error


def explain(error: KubeError, server: str) -> str:
    """What is wrong with the access to a cluster, and what to do about it."""
    told = error.message.strip().splitlines()[0] if error.message.strip() else type(error).__name__
    match error:
        case UnavailableError(code=401):
            return f"{server} does not accept the credentials: log in again, or choose another --context"
        case UnavailableError() if not server:
            return f"{told}: set KUBECONFIG, or give --kubeconfig and --context"
        case UnavailableError():
            return f"{server} does not answer ({told}): is the cluster up, and the --context right?"
        case ForbiddenError():
            return f"{told}: ask for that right, or choose another --namespace"
        case NotFoundError() if "page not found" in told or "could not find the requested resource" in told:
            return f"the kind {KIND} is not installed in this cluster: kvloop crd | kubectl apply --server-side -f -"
        case _:
            return told


async def find(session: Session, namespace: str, name: str) -> Body:
    """A custom resource.

    Raises:
        NoSuchResourceError: there is none of that name; the message names those that there are.
    """
    try:
        return await session.get(CUSTOM_RESOURCE, namespace, name)
    except NotFoundError:
        others = [each["metadata"]["name"] for each in await session.list(CUSTOM_RESOURCE, namespace)]
        there = f"there are {', '.join(sorted(others))}" if others else f"see kubectl get {PLURAL} --all-namespaces"
        raise NoSuchResourceError(f"no {KIND} {name} in the namespace {namespace}: {there}") from None
