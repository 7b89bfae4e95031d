"""kvloop in a cluster with a real node, installed as a user installs it; and what tests ask of its pods."""

import asyncio
import itertools
import json
import os
import signal
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster import Client as Cluster
from e2e.cluster import eventually
from e2e.control.harness import ACCOUNT, NAMESPACE
from e2e.demo import cold
from e2e.demo.__main__ import INSTALL, impatient, load_images, with_images
from e2e.enginesim import Config, EngineSim
from e2e.site import Body, Site
from kvloop.api.contract import ReuseSummary
from kvloop.api.labels import ENGINE_HTTP, PLURAL, REVISION, ROUTER_ADMIN
from kvloop.cli.load import Client, Turn

MODEL: Final = "sim"
WEIGHTS: Final = "/models/sim"
"""Path of the model. To the simulated engine another path is another model: other KV, other answers."""
REPLY_TOKENS: Final = 40
SECRET: Final = "canary-7f3a9c"  # noqa: S105 (of a test)
"""Value of an environment variable that nothing may tell."""


@dataclass(frozen=True)
class Platform:
    """A cluster with our images and the operator. `images` are references by short name."""

    cluster: Cluster
    images: dict[str, str]

    def operator_pod(self) -> Body:
        """The operator's pod."""
        (pod,) = self.cluster.items(
            "pods", f"--namespace={NAMESPACE}", "--selector=app.kubernetes.io/component=operator"
        )
        return pod

    @contextmanager
    def without_operator(self) -> Iterator[None]:
        """With no operator, as while a node with it is gone."""
        self._scale(0)
        eventually(lambda: not self.cluster.items("pods", f"--namespace={NAMESPACE}"), timeout_s=60)
        try:
            yield
        finally:
            self._scale(1)
            self.ready()

    @contextmanager
    def operator_with(self, *arguments: str) -> Iterator[None]:
        """With another operator, of these arguments besides."""
        path = "/spec/template/spec/containers/0/args"
        before = self.cluster.get("deployment", ACCOUNT, NAMESPACE)["spec"]["template"]["spec"]["containers"][0]["args"]
        self._patch([{"op": "replace", "path": path, "value": [*before, *arguments]}])
        try:
            yield
        finally:
            self._patch([{"op": "replace", "path": path, "value": before}])

    def _patch(self, change: list[Body]) -> None:
        patch = f"--patch={json.dumps(change)}"
        self.cluster.kubectl("patch", "deployment", ACCOUNT, f"--namespace={NAMESPACE}", "--type=json", patch)
        self.ready()

    def ready(self) -> None:
        """Wait until the operator runs."""
        self.cluster.kubectl("rollout", "status", f"deployment/{ACCOUNT}", f"--namespace={NAMESPACE}", "--timeout=60s")

    def _scale(self, replicas: int) -> None:
        self.cluster.kubectl("scale", f"deployment/{ACCOUNT}", f"--namespace={NAMESPACE}", f"--replicas={replicas}")


def install(cluster: Cluster) -> Platform:
    """Load the images and apply manifests/install.yaml."""
    platform = Platform(cluster, load_images(cluster))
    cluster.apply(impatient(yaml.safe_load_all(with_images(INSTALL.read_text(), platform.images))))
    platform.ready()
    return platform


@dataclass(frozen=True)
class NodeSite(Site):
    """A namespace whose custom resources become pods."""

    platform: Platform

    def create(self, name: str = "chat", **spec: Any) -> Body:
        """Create a custom resource: one prefill and one decode engine, if `spec` says nothing else."""
        role = {"replicas": 1, "gpus": 0}
        base: Body = {"engine": self.engine(), "prefill": role | {"prefixCaching": False}, "decode": role}
        return super().create(name, **base | spec)

    def engine(self, *, image: str = "", args: Iterable[str] = (), **env: str) -> Body:
        """`spec.engine`, with the variables that `env` names."""
        return {
            "image": image or self.platform.images["enginesim"],
            "imagePullPolicy": "IfNotPresent",
            "version": "0.32.0",
            "shutdownTimeoutSeconds": 5,
            "args": list(args),
            "env": [{"name": name, "value": value} for name, value in env.items()],
        }

    def wait_ready(self, name: str = "chat", timeout_s: float = 90) -> None:
        """As a user waits."""
        self.cluster.wait(f"{PLURAL}/{name}", "condition=Ready", self.namespace, timeout_s)

    def url(self, name: str = "chat") -> str:
        """The client Service, by its ClusterIP: this machine does not ask the cluster's DNS."""
        return f"http://{self.get('service', name)['spec']['clusterIP']}:8000"

    def client(self, name: str = "chat", **headers: str) -> Client:
        """A client of the custom resource; it knows nothing of kvloop."""
        return Client(self.url(name), MODEL, headers=headers)

    def python(self, pod: Body, code: str) -> str:
        """What a line of Python prints in a pod; our images hold no shell."""
        pod_name = pod["metadata"]["name"]
        return self.cluster.kubectl("exec", f"--namespace={self.namespace}", pod_name, "--", "python3", "-c", code)

    def pods(self, component: str = "", name: str = "chat") -> list[Body]:
        """Pods of the custom resource; of one component, if it is named."""
        selector = f"kvloop.io/name={name}" + (f",app.kubernetes.io/component={component}" if component else "")
        return self.items("pods", f"--selector={selector}")

    def pod_at(self, address: str) -> Body:
        """The pod with that host:port."""
        return next(pod for pod in self.items("pods") if pod["status"].get("podIP") == address.rpartition(":")[0])

    def reuse(self, name: str = "chat") -> ReuseSummary:
        """What the only router says itself."""
        (pod,) = (pod for pod in self.pods("router", name) if is_ready(pod))
        answer = httpx.get(f"http://{pod['status']['podIP']}:{ROUTER_ADMIN}/reuse", trust_env=False, timeout=60)
        return ReuseSummary.model_validate_json(answer.raise_for_status().content)

    def log(self, name: str = "chat") -> list[Body]:
        """The router's log, a line for each turn."""
        lines = self.kubectl("logs", f"deployment/{name}-router").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@contextmanager
def opened(platform: Platform, level: str = "baseline") -> Iterator[NodeSite]:
    """A namespace, for a while, whose pods must keep to a Pod Security Standard.

    What operator and routers ask of the API server for it must be allowed: their roles are neither too small, nor is
    anything tried that they do not need.
    """
    site = NodeSite(platform.cluster, f"test-{uuid.uuid4().hex[:8]}", platform)
    labels = {"pod-security.kubernetes.io/enforce": level}
    begin = platform.cluster.audit_log.stat().st_size
    platform.cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": site.namespace, "labels": labels}}
    )
    try:
        yield site
        assert not _refused(site, begin)
    finally:
        platform.cluster.kubectl("delete", "namespace", site.namespace, "--wait=false")


def _refused(site: NodeSite, begin: int) -> list[tuple[str, str]]:
    """Forbidden requests of service accounts since the audit log had `begin` bytes: who, and what."""
    with site.cluster.audit_log.open("rb") as log:
        log.seek(begin)
        lines = log.read().splitlines()
    events = [json.loads(line) for line in lines if b'"code":403' in line]
    own = (f"system:serviceaccount:{NAMESPACE}:", f"system:serviceaccount:{site.namespace}:")
    return [
        (event["user"]["username"], f"{event['verb']} {event['requestURI']}")
        for event in events
        if event["user"]["username"].startswith(own)
        and event.get("objectRef", {}).get("namespace", site.namespace) in {site.namespace, NAMESPACE}
    ]


def is_ready(pod: Body) -> bool:
    """Whether a pod is ready and stays."""
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def revisions(pods: Iterable[Body]) -> set[str]:
    """Revisions of pods."""
    return {pod["metadata"]["labels"][REVISION] for pod in pods}


def restarts(pod: Body) -> int:
    """How often a pod's container was started again."""
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", ()))


def metrics(pod: Body, port: int = ENGINE_HTTP) -> "Metrics":
    """/metrics of a pod."""
    answer = httpx.get(f"http://{pod['status']['podIP']}:{port}/metrics", trust_env=False, timeout=60)
    return Metrics(answer.raise_for_status().text)


@dataclass(frozen=True)
class Metrics:
    """Samples of a Prometheus exposition."""

    text: str

    def labels(self, name: str) -> list[dict[str, str]]:
        """Labels of each sample of that name."""
        return [sample.labels for sample in self._samples() if sample.name == name]

    def sum(self, name: str, **labels: str) -> float:
        """Sum of the samples of that name with these labels."""
        return sum(
            float(sample.value)
            for sample in self._samples()
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def _samples(self) -> Iterator[Any]:
        return (sample for family in text_string_to_metric_families(self.text) for sample in family.samples)


def kill(pod: Body) -> None:
    """SIGKILL to a pod's only container, from outside: nothing inside may kill the first process of its own."""
    (status,) = pod["status"]["containerStatuses"]
    container = status["containerID"].rpartition("/")[2]
    processes = [int(path.name) for path in Path("/proc").glob("[0-9]*") if container in _control_group(path)]
    assert processes, f"no process of container {container} on this machine"
    for process in processes:
        os.kill(process, signal.SIGKILL)


def _control_group(process: Path) -> str:
    try:
        return (process / "cgroup").read_text()
    except OSError:  # has ended meanwhile
        return ""


@dataclass
class Talk:
    """One conversation, as a client holds it that sends the whole history and no id. Keeps all turns."""

    client: Client
    topic: str
    turns: list[Turn] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages = [{"role": "system", "content": f"You know all about {self.topic}. Answer at length. " * 20}]

    async def say(self, text: str = "And what else is there to say of it?", **fields: Any) -> Turn:
        """A user message and its streamed reply. Raises LoadError if there is none."""
        self.messages.append({"role": "user", "content": text})
        turn = await self.send(self.messages, **fields)
        self.messages.append({"role": "assistant", "content": turn.reply})
        return turn

    async def send(self, messages: Iterable[dict[str, str]], **fields: Any) -> Turn:
        """Any request; `fields` are added to the body."""
        sent = [dict(each) for each in messages]
        body = {"model": MODEL, "messages": sent, "max_tokens": REPLY_TOKENS, "temperature": 0, **fields}
        reply = await self.client.stream(body)
        turn = Turn(0, len(self.turns), 0, reply.prompt_tokens, reply.ttft_s, body, reply.text)
        self.turns.append(turn)
        return turn


class Load:
    """``async with Load(client) as load``: conversations one after another, three at a time, until the block ends.

    A turn that fails ends the block with LoadError.
    """

    def __init__(self, client: Client) -> None:
        self.turns: list[Turn] = []
        self._client = client
        self._serial = itertools.count()
        self._stop = asyncio.Event()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._running: asyncio.Future[Any] = asyncio.gather(*(self._converse() for _ in range(3)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        await self._running

    async def more(self, count: int) -> None:
        """Wait for further turns; not for ever, where one has failed."""
        goal = len(self.turns) + count
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.turns) >= goal or self._stop.is_set())

    async def _converse(self) -> None:
        try:
            while not self._stop.is_set():
                await self._hold(Talk(self._client, f"number {next(self._serial)}"))
        finally:
            self._stop.set()
            async with self._changed:
                self._changed.notify_all()

    async def _hold(self, talk: Talk) -> None:
        for _ in range(8):
            turn = await talk.say()
            async with self._changed:
                self.turns.append(turn)
                self._changed.notify_all()
            if self._stop.is_set():
                return


async def wrong(turns: Iterable[Turn], weights: str = WEIGHTS) -> list[cold.Difference]:
    """Turns whose answers are not those of a cold computation with these weights."""
    config = Config(model=weights, served_model_names=(MODEL,), host="127.0.0.1", port=0, prefix_caching=False)
    async with EngineSim(config, plugin=None) as engine, Client(engine.url, MODEL) as client:
        return await cold.differences(client, list(turns))
