"""`kvloop check`: whether it can work, and whether it does."""

import json
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from kvloop.cli.checks.finding import Finding, Level, worst
from kvloop.cli.checks.sequence import Subject, findings
from kvloop.cli.exits import NO, fail
from kvloop.cli.source import SourceError, resources
from kvloop.cli.target import Context, Kubeconfig, Namespace, Target
from kvloop.kube.client import Body
from kvloop.kube.session import Session

console = Console(highlight=False, soft_wrap=True, emoji=False)
_STYLE = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


class Output(StrEnum):
    """What is printed."""

    TEXT = "text"
    JSON = "json"


def check(
    name: Annotated[str | None, typer.Argument(help="A resource of the cluster.")] = None,
    file: Annotated[
        str | None, typer.Option("--filename", "-f", metavar="FILE", help="Or a file with one, before it is applied.")
    ] = None,
    offline: Annotated[bool, typer.Option(help="Send no requests to engines and routers.")] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="Print as.")] = Output.TEXT,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Check a cluster and a resource: before it is applied, and, once it runs, end to end.

    Always: the API server, the CRD, the operator. With a resource: its rules, versions and images, what it refers to,
    nodes, quotas and policies. Once it is Ready: the guard in each engine, transfers in both directions, handles in
    streams, and whether a second turn is answered as a cold engine answers it. This sends each engine a few short
    requests: through the API server (pods/proxy), or, where NetworkPolicies keep it out, by a program in a router's pod
    (pods/exec). Set KVLOOP_API_KEY where the router wants a key. Of Secrets only the existence is looked at.

    Exit codes: 0 nothing failed, though there may be warnings; 1 something failed; 2 the cluster or the file is
    unusable.
    """
    if name and file:
        raise typer.BadParameter("name a resource, or give a file")
    body = _read(file) if file else None
    work = partial(_all, name=name, body=body, namespace=namespace, offline=offline, quiet=output is Output.JSON)
    found = Target(kubeconfig, context).run(work)
    level = worst(found)
    if output is Output.JSON:
        typer.echo(json.dumps({"level": level, "checks": [asdict(each) for each in found]}, indent=2))
    else:
        counts = {each: sum(one.level is each for one in found) for each in Level}
        console.print(", ".join(f"{count} {each}" for each, count in counts.items()), style=_STYLE[level])
    if level is Level.FAIL:
        raise typer.Exit(NO)


def _read(file: str) -> Body:
    try:
        found = resources([file])
    except SourceError as error:
        raise fail(str(error)) from error
    if len(found) > 1:
        raise fail(f"{file} has several resources: check one at a time")
    return found[0].body


async def _all(
    session: Session, *, name: str | None, body: Body | None, namespace: str | None, offline: bool, quiet: bool
) -> list[Finding]:
    found = []
    subject = Subject(namespace or session.namespace, name, body)
    async for finding in findings(session, subject, offline=offline):
        found.append(finding)
        if not quiet:
            _print(finding)
    return found


def _print(finding: Finding) -> None:
    console.print(f"{finding.level:5}", style=_STYLE[finding.level], end="")
    console.print(f" {finding.check}: {finding.detail}", markup=False)
    if finding.remedy:
        console.print(f"      -> {finding.remedy}", markup=False)
