"""`kvloop render`: what the operator would make of a file, without any cluster."""

from pathlib import Path
from typing import Annotated, Any

import typer

from kvloop import __version__
from kvloop.api.v1alpha1 import parse
from kvloop.cli.exits import NO, fail
from kvloop.cli.output import Format, OutputError, to_text, write_files
from kvloop.cli.source import NAMESPACE_RULE, Document, SourceError, in_namespace, namespace_fits, refusals, resources
from kvloop.engine import bundle
from kvloop.plan.config import ApiAvailable, PlanConfig
from kvloop.plan.desired import plan


def render(
    files: Annotated[
        list[str],
        typer.Option("--filename", "-f", metavar="FILE", help="File with custom resources; - is standard input."),
    ],
    output: Annotated[Format, typer.Option("--output", "-o", help="Print as.")] = Format.YAML,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write one file per child into this folder instead of printing.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only children of this kind, such as StatefulSet; may be repeated."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of resources that do not say one.")
    ] = None,
    router_image: Annotated[
        str, typer.Option(help="Router image of resources that do not say one.")
    ] = f"kvloop/router:{__version__}",
    pod_monitors: Annotated[
        bool, typer.Option(help="Render as for a cluster that has the Prometheus operator's CRDs.")
    ] = False,
) -> None:
    """Print the Kubernetes objects that the operator would make of custom resources.

    Needs no cluster. The resources are checked as the API server would check them; other kinds of objects in the files
    are passed over. Owner references are left out, since only a cluster gives a resource its uid.

    Exit codes: 0 rendered; 1 a resource would be refused; 2 a file or the command line is unusable.
    """
    config = PlanConfig(
        router_image=router_image,
        plugin_files=bundle.files(),
        api_available=ApiAvailable(pod_monitor=pod_monitors),
    )
    if namespace is not None and not namespace_fits(namespace):
        raise fail(f"--namespace {namespace}: {NAMESPACE_RULE}")
    try:
        children = _selected(_children(resources(files), namespace, config), kind)
        if out is None:
            typer.echo(to_text(children, output), nl=False)
            return
        for path in write_files(out, children, output):
            typer.echo(path)
    except (SourceError, OutputError) as error:
        raise fail(str(error)) from error


def _children(found: list[Document], namespace: str | None, config: PlanConfig) -> list[dict[str, Any]]:
    if wrong := refusals(found):
        raise fail(*wrong, code=NO)
    children = []
    parents: dict[tuple[str, ...], Document] = {}
    for document in found:
        for child in plan(parse(in_namespace(document.body, namespace)), None, config).children:
            metadata = child["metadata"]
            other = parents.setdefault((child["kind"], metadata.get("namespace", ""), metadata["name"]), document)
            if other is not document:
                clash = f"{child['kind']} {metadata['name']} would be a child of {other.title}, too: rename one of them"
                raise fail(f"{document.title}: {clash}", code=NO)
            children.append(child)
    return children


def _selected(children: list[dict[str, Any]], kinds: list[str] | None) -> list[dict[str, Any]]:
    if not kinds:
        return children
    there = {child["kind"].lower(): child["kind"] for child in children}
    unknown = [kind for kind in kinds if kind.lower() not in there]
    if unknown:
        raise SourceError(f"no child is a {', '.join(unknown)}; there are {', '.join(sorted(there.values()))}")
    wanted = {kind.lower() for kind in kinds}
    return [child for child in children if child["kind"].lower() in wanted]
