"""`kvloop status`: what is true of custom resources, for people."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live

from kvloop.cli import tables
from kvloop.cli.exits import results
from kvloop.cli.target import AllNamespaces, Context, Kubeconfig, Namespace, Target, find
from kvloop.kube.client import Body
from kvloop.kube.errors import UnavailableError
from kvloop.kube.kinds import CUSTOM_RESOURCE
from kvloop.kube.session import Session

Look = Callable[[Session], Awaitable[list[Body]]]


class Output(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"


def status(
    name: Annotated[
        str | None, typer.Argument(help="One resource, in detail; all of the namespace if left out.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks with --watch.")] = 2,
    output: Annotated[Output, typer.Option("--output", "-o", help="Print as.")] = Output.TABLE,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what is true of custom resources: conditions, rollout, reuse, first tokens.

    Everything comes from the status that the operator writes; its numbers are at most a minute old. With JSON, --watch
    prints a line whenever something has changed.

    Exit codes: 0 shown; 2 the cluster cannot be asked, or there is no such resource.
    """
    if all_namespaces and name:
        raise typer.BadParameter("name one resource, or ask for all namespaces")
    look = partial(_look, name=name, namespace=namespace, all_namespaces=all_namespaces)
    show = _Json(one=bool(name)) if output is Output.JSON else _Table(one=bool(name))
    Target(kubeconfig, context).run(partial(_show, look=look, show=show, every=interval if watch else None))


async def _look(session: Session, *, name: str | None, namespace: str | None, all_namespaces: bool) -> list[Body]:
    where = None if all_namespaces else namespace or session.namespace
    if name and where:
        return [await find(session, where, name)]
    found = await session.list(CUSTOM_RESOURCE, where)
    return sorted(found, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"]))


async def _show(session: Session, *, look: Look, show: "_Json | _Table", every: float | None) -> None:
    """Once, or again and again; what cannot be read for a while stays as it was."""
    found = await look(session)
    if every is None:
        show.once(found)
        return
    with show.live() as update:
        while True:
            update(found)
            await asyncio.sleep(every)
            with suppress(UnavailableError):
                found = await look(session)


@dataclass(frozen=True)
class _Table:
    one: bool

    def once(self, found: list[Body]) -> None:
        results().print(self._shown(found))

    @contextmanager
    def live(self) -> Iterator[Callable[[list[Body]], None]]:
        console = results()
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            yield lambda found: live.update(self._shown(found), refresh=True)

    def _shown(self, found: list[Body]) -> RenderableType:
        return tables.detail(found[0], time.time()) if self.one else tables.overview(found, time.time())


@dataclass(frozen=True)
class _Json:
    one: bool

    def once(self, found: list[Body]) -> None:
        typer.echo(json.dumps(self._summary(found), indent=2))

    @contextmanager
    def live(self) -> Iterator[Callable[[list[Body]], None]]:
        last = ""

        def update(found: list[Body]) -> None:
            nonlocal last
            line = json.dumps(self._summary(found))
            if line != last:
                typer.echo(line)
                last = line

        yield update

    def _summary(self, found: list[Body]) -> Any:
        all_of_them = [
            {name: each["metadata"].get(name) for name in ("namespace", "name", "generation")}
            | {"status": each.get("status", {})}
            for each in found
        ]
        return all_of_them[0] if self.one else all_of_them
