"""Engines and routers in their pods, asked through the API server as one of them asks another."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvloop.api.labels import ENGINE_HTTP, REVISION, ROLE, Role
from kvloop.cli.load import TEXT
from kvloop.cli.reach import Reach
from kvloop.kube.client import Body
from kvloop.kube.transport import Answer

HANDLE: Final = "kv_transfer_params"
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


class RefusedError(Exception):
    """A server answered with an error; the message has its status and its words."""


@dataclass(frozen=True)
class Reply:
    """A streamed answer: its text, all that was said, thoughts too, and the handle that came with it."""

    text: str
    said: str
    handle: dict[str, Any] | None


@dataclass(frozen=True)
class Server:
    """A pod that answers HTTP on a port."""

    reach: Reach = field(repr=False)
    pod: Body = field(repr=False)
    port: int

    @property
    def name(self) -> str:
        """Of the pod."""
        return str(self.pod["metadata"]["name"])

    async def ask(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """A good answer. Raises `RefusedError`, or `KubeError` where the pod cannot be reached."""
        answer = await self.reach.ask(self.pod, self.port, path, body=body, headers=headers)
        if answer.status != 200:
            raise RefusedError(f"{self.name} answered {answer.status}: {answer.text.strip()[:300]}")
        return answer

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """An answer in one piece."""
        found: dict[str, Any] = json.loads((await self.ask("/v1/chat/completions", {**body, "stream": False})).text)
        return found

    async def stream(self, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> Reply:
        """An answer event by event."""
        answer = await self.ask("/v1/chat/completions", {**body, "stream": True}, headers)
        text, said, handle = "", "", None
        for line in answer.text.splitlines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise RefusedError(f"{self.name} broke its answer off: {event['error']}")
            handle = event.get(HANDLE) or handle
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
                said += "".join(choice["delta"].get(field) or "" for field in TEXT)
        return Reply(text, said, handle)


@dataclass(frozen=True)
class Engine(Server):
    """An engine; `info` are the labels of its kvloop_engine_info, empty without the plugin.

    `bidirectional` is whether it was told to send KV back: another one hangs for ever on a handle of decode's.
    """

    role: Role
    revision: str
    bidirectional: bool
    info: Mapping[str, str] = field(default_factory=dict)

    @property
    def guarded(self) -> bool:
        """Whether the guard is active in it."""
        return self.info.get("active") == "1"

    @property
    def exchanges(self) -> bool:
        """Whether it may be sent handles."""
        return self.guarded and self.bidirectional

    async def counter(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        samples = _samples((await self.ask("/metrics")).text, name)
        return sum(value for found, value in samples if labels.items() <= found.items())


async def engine(reach: Reach, pod: Body) -> Engine:
    """An engine with what it tells of itself. Raises as `Server.ask`."""
    labels = pod["metadata"]["labels"]
    arguments = " ".join(each for container in pod["spec"]["containers"] for each in container.get("args") or ())
    both_ways = '"bidirectional_kv_xfer": true' in arguments
    plain = Engine(reach, pod, ENGINE_HTTP, Role(labels[ROLE]), labels[REVISION], both_ways)
    samples = _samples((await plain.ask("/metrics")).text, "kvloop_engine_info")
    return replace(plain, info=samples[0][0]) if samples else plain


def _samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each sample of a metric."""
    lines = (line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return [(dict(_LABEL.findall(line)), float(line.rpartition(" ")[2])) for line in lines]
