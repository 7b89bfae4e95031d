"""`kvloop bundle`: what somebody needs who is to find out from afar why something does not work."""

import asyncio
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kvloop import __version__
from kvloop.api.labels import APP_COMPONENT, ENGINE_HTTP, ROUTER_ADMIN, Role
from kvloop.cli import redact
from kvloop.cli.collect import OPERATOR, installations, labelled
from kvloop.cli.exits import NO, errors, fail
from kvloop.cli.output import Format, to_yaml
from kvloop.cli.progress import progress
from kvloop.cli.reach import Reach, bastion
from kvloop.cli.target import Context, Kubeconfig, Namespace, Target, find
from kvloop.kube.client import Body
from kvloop.kube.errors import KubeError
from kvloop.kube.kinds import CHILDREN, EVENT, NODE, POD
from kvloop.kube.session import Session
from kvloop.plan import router

_README: Final = """\
Support archive of the DisaggregatedInference {namespace}/{name}, made by kvloop {version} on {time}.

It holds no Secret, and of environment variables only values that are known to be harmless. What looks like a secret is
replaced by {left_out}; of logs, lines that may hold prompts or answers are left out. Look through it before you pass
it on.
"""
_LOGS_CONTENT: Final = re.compile(r"--enable-log-(requests|outputs|deltas)\b")
_METRICS: Final = {Role.PREFILL: ENGINE_HTTP, Role.DECODE: ENGINE_HTTP, router.COMPONENT: ROUTER_ADMIN}


@dataclass
class Bundle:
    """What was gathered, by path, and what could not be, with the reason."""

    members: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    async def add(self, path: str, read: Awaitable[str]) -> None:
        """Take a text, if it can be read."""
        try:
            self.members[path] = await read
        except KubeError as error:
            self.missing[path] = error.message.splitlines()[0]

    def contents(self) -> str:
        """The list of what is in it, and of what is not."""
        lines = [f"{len(text.encode()):>10}  {path}" for path, text in sorted(self.members.items())]
        gone = [f"   missing  {path}: {why}" for path, why in sorted(self.missing.items())]
        return "\n".join([*lines, *gone, ""])


def bundle(
    name: Annotated[str, typer.Argument(help="The custom resource that it is about.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Archive to write; by default in this folder.")
    ] = None,
    lines: Annotated[int, typer.Option(min=1, max=1_000_000, help="Last lines of each log.")] = 5000,
    output: Annotated[
        Format | None, typer.Option("--output", "-o", metavar="yaml|json", help="Print the list of contents as.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Gather a support archive, without secrets, keys and prompts.

    Holds the resource, its children, pods, their nodes and events; the last lines of the logs of operator, routers and
    engines; their metrics; and versions. Environment variables are shown only where they are known to be harmless, and
    the file can be read by you alone. Look through it before you pass it on.

    Exit codes: 0 written; 1 written, but parts could not be read; 2 nothing was written.
    """
    target = Target(kubeconfig, context)
    gathered, where = target.run(partial(_gather, name=name, namespace=namespace, lines=lines))
    path = out or Path(f"kvloop-{where}-{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    try:
        _write(path, gathered.members)
    except OSError as error:
        raise fail(f"cannot write {path}: {error.strerror}") from error
    if output is None:
        typer.echo(gathered.contents(), nl=False)
        typer.echo(path)
    else:
        sizes = {member: len(text.encode()) for member, text in sorted(gathered.members.items())}
        told = {"file": str(path), "members": sizes, "missing": gathered.missing}
        typer.echo(json.dumps(told, indent=2) if output is Format.JSON else to_yaml(told), nl=output is Format.JSON)
    if gathered.missing:
        errors.print(f"{len(gathered.missing)} parts could not be read", style="yellow")
        raise typer.Exit(NO)


async def _gather(session: Session, *, name: str, namespace: str | None, lines: int) -> tuple[Bundle, str]:
    where = namespace or session.namespace
    resource = await find(session, where, name)
    found = Bundle({"resource.yaml": _yaml(resource)})
    with progress("reading objects"):
        objects = [resource, *await _objects(found, session, where, name)]
        pods = [each for each in objects if each["kind"] == "Pod"]
        await found.add("events.yaml", _events(session, where, {each["metadata"]["uid"] for each in objects}))
        await found.add("versions.yaml", _versions(session))
        for node in sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}):
            await found.add(f"nodes/{node}.yaml", _node(session, node))
    reads = [*_of_pods(found, session, pods, lines), *await _of_operators(found, session, (where, name), lines)]
    with progress("reading logs and metrics", len(reads)) as advance:
        await asyncio.gather(*(_counted(found.add(path, read), advance) for path, read in reads))
    about = {"namespace": where, "name": name, "version": __version__, "left_out": redact.LEFT_OUT}
    found.members["README.txt"] = _README.format(**about, time=time.strftime("%FT%TZ", time.gmtime()))
    found.members["contents.txt"] = found.contents()
    return found, where


async def _counted(work: Awaitable[None], advance: Callable[[], None]) -> None:
    await work
    advance()


async def _objects(found: Bundle, session: Session, namespace: str, name: str) -> list[Body]:
    """Children and pods."""
    objects: list[Body] = []
    for kind in (*CHILDREN, POD):
        try:
            objects += await labelled(session, kind, namespace, name)
        except KubeError as error:
            found.missing[kind.plural] = error.message
    for each in objects:
        folder = "pods" if each["kind"] == POD.kind else "children"
        found.members[f"{folder}/{each['kind'].lower()}-{each['metadata']['name']}.yaml"] = _yaml(each)
    return objects


async def _events(session: Session, namespace: str, uids: set[str]) -> str:
    """Events about the resource, its children and its pods, in order."""
    events = await session.list(EVENT, namespace)
    about = [each for each in events if each["involvedObject"].get("uid") in uids]
    return "---\n".join(
        _yaml(each) for each in sorted(about, key=lambda each: str(each["metadata"]["creationTimestamp"]))
    )


async def _versions(session: Session) -> str:
    versions: dict[str, Any] = {"kvloop": __version__, "kubernetes": await session.version()}
    try:
        versions["operators"] = [
            {"namespace": each.namespace, "image": each.image, "ready": each.ready}
            for each in await installations(session)
        ]
    except KubeError as error:
        versions["operators"] = error.message
    return to_yaml(versions)


async def _node(session: Session, name: str) -> str:
    node = await session.get(NODE, None, name)
    status = node.get("status") or {}
    kept = {key: status[key] for key in ("allocatable", "capacity", "conditions", "nodeInfo") if key in status}
    meta = {key: node["metadata"].get(key) for key in ("name", "labels")}
    return _yaml({"kind": "Node", "metadata": meta, "spec": {"taints": node["spec"].get("taints")}, "status": kept})


def _of_pods(found: Bundle, session: Session, pods: list[Body], lines: int) -> Iterator[tuple[str, Awaitable[str]]]:
    reach = Reach(session, bastion(pods))
    for pod in pods:
        name, component = pod["metadata"]["name"], pod["metadata"]["labels"].get(APP_COMPONENT)
        if _logs_content(pod):
            found.missing[f"logs/{name}"] = "the engine logs what is asked and answered"
        else:
            yield from _logs(session, pod, lines)
        if port := _METRICS.get(component):
            yield f"metrics/{name}.txt", _asked(reach, pod, port, "/metrics")
        if component == router.COMPONENT:
            yield f"reuse/{name}.json", _asked(reach, pod, ROUTER_ADMIN, "/reuse")


def _logs_content(pod: Body) -> bool:
    """Whether an engine is told to log prompts or answers, as vLLM does on debug level, too."""
    return any(
        any(_LOGS_CONTENT.match(argument) for argument in container.get("args") or ())
        or any(
            each["name"] == "VLLM_LOGGING_LEVEL" and each.get("value") == "DEBUG" for each in container.get("env") or ()
        )
        for container in pod["spec"]["containers"]
    )


def _logs(session: Session, pod: Body, lines: int) -> Iterator[tuple[str, Awaitable[str]]]:
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        path = f"logs/{name}.{container['name']}"
        yield f"{path}.log", _log(session, pod, container["name"], lines)
        if container.get("restartCount"):
            yield f"{path}.previous.log", _log(session, pod, container["name"], lines, previous=True)


async def _log(session: Session, pod: Body, container: str, lines: int, *, previous: bool = False) -> str:
    meta = pod["metadata"]
    text = await session.logs(meta["namespace"], meta["name"], container, lines=lines, previous=previous)
    return redact.log(text)


async def _asked(reach: Reach, pod: Body, port: int, path: str) -> str:
    answer = await reach.ask(pod, port, path)
    if answer.status != 200:
        raise KubeError(f"answered {answer.status}", answer.status)
    return redact.text(answer.text)


async def _of_operators(
    found: Bundle, session: Session, key: tuple[str, str], lines: int
) -> list[tuple[str, Awaitable[str]]]:
    try:
        pods = await session.list(POD, labels=OPERATOR)
    except KubeError as error:
        found.missing["operator"] = error.message
        return []
    return [
        (
            f"operator/{pod['metadata']['namespace']}.{pod['metadata']['name']}.log",
            _operator_log(session, pod, key, lines),
        )
        for pod in pods
    ]


async def _operator_log(session: Session, pod: Body, key: tuple[str, str], lines: int) -> str:
    """Lines about this resource, or about none: others are nobody's business."""
    text = await _log(session, pod, pod["spec"]["containers"][0]["name"], lines)
    return "".join(f"{line}\n" for line in text.splitlines() if _about(line) in {key, None})


def _about(line: str) -> tuple[str, str] | None:
    """Namespace and name of the resource that a line of the operator's log is about."""
    try:
        subject = json.loads(line).get("object")
        return (subject["namespace"], subject["name"]) if subject else None
    except (ValueError, AttributeError, KeyError, TypeError):
        return None


def _yaml(value: Body) -> str:
    return to_yaml(redact.body(value))


def _write(path: Path, members: dict[str, str]) -> None:
    """A new file, for its owner alone."""
    top = path.name.removesuffix(".tar.gz")
    with (
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
        tarfile.open(fileobj=file, mode="w:gz") as archive,
    ):
        for name, text in sorted(members.items()):
            data = text.encode()
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
            archive.addfile(info, io.BytesIO(data))
