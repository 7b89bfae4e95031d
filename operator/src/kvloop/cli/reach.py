"""How pods are asked from outside: by way of the API server, or else of a router, which NetworkPolicies let in."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvloop.api.labels import APP_COMPONENT, ROUTER_CONTAINER
from kvloop.kube.client import Body
from kvloop.kube.errors import UnavailableError
from kvloop.kube.session import Session
from kvloop.kube.transport import Answer
from kvloop.plan.router import COMPONENT

FIRST_SECONDS: Final = 8.0
"""How long the API server is waited for at first: where it is kept out, packets vanish without an answer."""
SCRIPT: Final = """
import json, sys, urllib.error, urllib.request
asked = json.loads(sys.stdin.readline())
request = urllib.request.Request(asked["url"], asked["body"] and asked["body"].encode(), asked["headers"])
try:
    answer = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60)
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps([answer.status, answer.read().decode(errors="replace")]))
"""


@dataclass
class Reach:
    """Asks pods. `bastion` is a ready router's pod, if there is one; `direct` is None until it is known what works."""

    session: Session
    bastion: Body | None
    direct: bool | None = None

    async def ask(
        self, pod: Body, port: int, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Any answer of a pod, as `Session.ask`. Raises `KubeError`."""
        meta = pod["metadata"]
        if self.direct is not False or self.bastion is None:
            try:
                async with asyncio.timeout(None if self.direct else FIRST_SECONDS):
                    answer = await self.session.ask(
                        meta["namespace"], meta["name"], port, path, body=body, headers=headers
                    )
            except (UnavailableError, TimeoutError) as error:
                if self.direct or self.bastion is None:
                    raise UnavailableError(str(error) or f"{meta['name']} does not answer the API server") from error
            else:
                self.direct = True
                return answer
            self.direct = False
        return await self._through(self.bastion, pod["status"]["podIP"], (port, path), body, headers or {})

    async def _through(
        self, router: Body, address: str, place: tuple[int, str], body: Any, headers: Mapping[str, str]
    ) -> Answer:
        """By a program in a router's pod."""
        meta, (port, path) = router["metadata"], place
        asked = {
            "url": f"http://{f'[{address}]' if ':' in address else address}:{port}{path}",
            "headers": {"Content-Type": "application/json", **headers},
            "body": None if body is None else json.dumps(body),
        }
        command = ("python3", "-c", SCRIPT)
        text = await self.session.run(meta["namespace"], meta["name"], ROUTER_CONTAINER, command, json.dumps(asked))
        return Answer(*json.loads(text))


def bastion(pods: list[Body]) -> Body | None:
    """A router that is ready."""
    return next(
        (pod for pod in pods if pod["metadata"]["labels"].get(APP_COMPONENT) == COMPONENT and is_ready(pod)), None
    )


def is_ready(pod: Body) -> bool:
    """Whether a pod is ready and stays."""
    conditions = {each["type"]: each["status"] for each in (pod.get("status") or {}).get("conditions") or ()}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]
