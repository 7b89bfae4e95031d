"""Whether answers are those of a cold computation: of an engine that reads nobody's KV cache, nor its own."""

import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvloop.cli.load import Client, Turn

_AT_ONCE = 4


@dataclass(frozen=True)
class Difference:
    """A wrong answer."""

    turn: Turn
    cold: str
    """What it should have been."""

    def __str__(self) -> str:
        return (
            f"conversation {self.turn.conversation}, turn {self.turn.number + 1}: "
            f"answered {self.turn.reply!r}, but a cold engine answers {self.cold!r}"
        )


async def differences(engine: Client, turns: Sequence[Turn]) -> list[Difference]:
    """Ask an engine, not the router, for the answers to the same requests; returns those that differ.

    The engine gets no `kv_transfer_params`, so it reads no other engine's cache, and a new `cache_salt` each time, so
    it finds nothing in its own. Any engine of the same model will do; those in use are not disturbed.
    """
    limit = asyncio.Semaphore(_AT_ONCE)

    async def ask(body: dict[str, Any]) -> str:
        async with limit:
            return await engine.answer(body | {"cache_salt": uuid.uuid4().hex})

    asked = {json.dumps(turn.body): turn.body for turn in turns}  # the same turn of several runs is computed once
    answers = dict(zip(asked, await asyncio.gather(*map(ask, asked.values())), strict=True))
    return [Difference(turn, cold) for turn in turns if (cold := answers[json.dumps(turn.body)]) != turn.reply]
