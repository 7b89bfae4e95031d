"""What nodes have to give, asked when a pod waits for one; not where the operator serves some namespaces alone."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvloop.controller import observe
from kvloop.controller.settings import NODES_SECONDS
from kvloop.kube.client import KubeClient
from kvloop.kube.errors import ExpiredError, ForbiddenError, ServerError
from kvloop.plan.observed import NodeKind

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """What was listed, None if nothing could be, and until when it is believed."""

    kinds: tuple[NodeKind, ...] | None
    until: float


class Nodes:
    """Lists nodes by their labels; resources that wait for the same nodes share a list.

    The scheduler changes its words about a pod when nodes have changed: an older list is then not believed any more.
    """

    def __init__(self, kube: KubeClient, *, readable: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._readable = readable
        self._clock = clock
        self._answers: dict[tuple[str, str], Answer] = {}
        self._one_at_a_time = asyncio.Lock()

    async def kinds(self, labels: Mapping[str, str], words: str) -> tuple[NodeKind, ...] | None:
        """The ready nodes with these labels; None if the operator may not read nodes, or cannot now.

        `words` are the scheduler's about those who wait for one.

        Raises:
            UnavailableError: the API server takes no requests now.
        """
        if not self._readable:
            return None
        selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        async with self._one_at_a_time:
            now = self._clock()
            self._answers = {of: answer for of, answer in self._answers.items() if now < answer.until}
            if (selector, words) not in self._answers:
                self._answers[selector, words] = await self._list(selector)
            return self._answers[selector, words].kinds

    async def _list(self, selector: str) -> Answer:
        try:
            offers = [offer async for body in self._kube.nodes(selector) if (offer := observe.offer(body))]
        except ForbiddenError as error:
            log.warning("nodes are not looked at any more: %s", error)
            self._readable = False
            return Answer(None, 0)
        except (ExpiredError, ServerError) as error:
            log.warning("nodes could not be listed: %s", error)
            return Answer(None, self._clock() + NODES_SECONDS)
        return Answer(observe.node_kinds(offers), self._clock() + NODES_SECONDS)
