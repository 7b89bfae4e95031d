"""`kvloop diff`: what applying a file would do to a cluster, before it is done."""

import json
import time
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.syntax import Syntax

from kvloop import __version__
from kvloop.cli.changes import Changes, changes
from kvloop.cli.collect import Installation, children_of, installations, observed, pods_of
from kvloop.cli.exits import NO, errors, fail
from kvloop.cli.source import SourceError, in_namespace, refusals, resources
from kvloop.cli.target import Context, Kubeconfig, Namespace, Target
from kvloop.controller.settings import Settings, plan_config
from kvloop.kube.client import Body
from kvloop.kube.errors import ForbiddenError, NotFoundError
from kvloop.kube.kinds import CUSTOM_RESOURCE, POD_MONITOR
from kvloop.kube.session import Session
from kvloop.plan.config import PlanConfig

console = Console(highlight=False, soft_wrap=True, emoji=False)


class Output(StrEnum):
    """What is printed."""

    TEXT = "text"
    JSON = "json"


def diff(
    files: Annotated[
        list[str],
        typer.Option("--filename", "-f", metavar="FILE", help="File with custom resources; - is standard input."),
    ],
    output: Annotated[Output, typer.Option("--output", "-o", help="Print as.")] = Output.TEXT,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what applying custom resources would change, and which pods would restart.

    Compares what the operator would make of the files with what it last applied in the cluster. Only reads: the
    resources, their children and pods, and the operator's Deployment, whose settings count.

    Exit codes: 0 nothing would change; 1 something would; 2 the files or the cluster are unusable.
    """
    try:
        wanted = resources(files)
    except SourceError as error:
        raise fail(str(error)) from error
    if wrong := refusals(wanted):
        raise fail(*wrong)
    bodies = [document.body for document in wanted]
    found = Target(kubeconfig, context).run(partial(_compare, bodies=bodies, namespace=namespace))
    if output is Output.JSON:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        for each in found:
            _show(each)
    if any(each.children for each in found):
        raise typer.Exit(NO)


async def _compare(session: Session, bodies: list[Body], namespace: str | None) -> list[Changes]:
    return [await _resource(session, in_namespace(body, namespace or session.namespace)) for body in bodies]


async def _resource(session: Session, body: Body) -> Changes:
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    try:
        live = await session.get(CUSTOM_RESOURCE, namespace, name)
    except NotFoundError:
        await session.list(CUSTOM_RESOURCE, namespace)  # an error, where the whole kind is not installed
        live = None
    children = await children_of(session, namespace, name)
    pods = await pods_of(session, namespace, name)
    config = await _config(session, namespace)
    return changes(body, live, children, observed(children, pods, time.time()), config)


async def _config(session: Session, namespace: str) -> PlanConfig:
    """The planner's settings: those of the operator that serves the namespace, or else the defaults."""
    try:
        serving = [each for each in await installations(session) if each.serves(namespace)]
    except ForbiddenError:
        serving = []
    installed: Installation | None = next(iter(serving), None)
    settings = installed.settings if installed else None
    if settings is None:
        errors.print("note: the operator's settings cannot be read; compared with its defaults", style="yellow")
    if installed and installed.version != __version__:
        note = (
            f"note: the operator is of version {installed.version}, and may make of it something else than this kvloop"
        )
        errors.print(f"{note}, {__version__}", style="yellow")
    return plan_config(settings or Settings(), pod_monitors=await session.serves(POD_MONITOR.api_version))


def _show(found: Changes) -> None:
    console.print(f"{found.namespace}/{found.name}", style="bold")
    if not found.children:
        console.print("  nothing changes\n")
        return
    for line in (*found.spec, *found.words):
        console.print(f"  {line}", markup=False)
    for number, step in enumerate(found.rollout, start=1):
        console.print(f"  step {number}: {step}", markup=False)
    counts = {
        action: sum(each.action == action for each in found.children) for action in ("create", "change", "delete")
    }
    console.print(f"  children: {', '.join(f'{count} to {action}' for action, count in counts.items() if count)}\n")
    for child in found.children:
        if console.is_terminal:
            console.print(Syntax(child.diff, "diff", background_color="default", word_wrap=True))
        else:
            typer.echo(child.diff, nl=False)
