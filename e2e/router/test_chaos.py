"""Engines, the store and clients come and go at random under load.

No answer is wrong, and no request fails but those whose own engine died after the first byte.
"""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import orjson

from e2e.enginesim import EngineSim
from e2e.router.fakevalkey import FakeValkey
from e2e.router.harness import user
from e2e.router.sim import Fleet
from e2e.router.talk import Chat, essence

CONVERSATIONS = 24
TURNS = 6
SEED = 7
PROMPT = "Tell me about the tides of the northern sea. " * 14
CHAT = Chat()


class Chaos:
    """One run. `results` counts what turns came to."""

    def __init__(self, fleet: Fleet, store: FakeValkey) -> None:
        self.fleet, self.store = fleet, store
        self.chance = random.Random(SEED)  # noqa: S311 (repeatable, not secret)
        self.results: Counter[str] = Counter()
        self.killed = 0

    async def conversation(self, number: int) -> None:
        messages = [user(f"{number} {PROMPT}")]
        for turn in range(TURNS):
            body = {"model": "tiny", "messages": messages, "max_tokens": self.chance.randint(8, 40)}
            stream = self.chance.random() < 0.7
            if self.chance.random() < 0.1:
                await self.hang_up(body)
            reply = await self.turn(body, stream=stream)
            if reply is None:
                return
            messages = [*messages, reply, user(f"And then, {turn}?")]

    async def turn(self, body: dict[str, Any], *, stream: bool) -> dict[str, Any] | None:
        """A turn, whose answer must be a cold engine's; None if its engine died."""
        status, raw = await self.fleet.router.post({**body, "stream": stream})
        if status != 200:
            self.results[f"status {status}"] += 1
            return None
        if stream and b'"error"' in raw:
            self.results["broken stream"] += 1
            return None
        reply = CHAT.stream(raw) if stream else CHAT.whole(orjson.loads(raw))
        assert essence(reply) == essence(CHAT.whole(await self.fleet.cold(body)))
        self.results["right"] += 1
        return reply

    async def hang_up(self, body: dict[str, Any]) -> None:
        task = asyncio.ensure_future(self.fleet.router.post({**body, "stream": True}))
        await asyncio.sleep(self.chance.random() * 0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def disturb(self) -> None:
        """Kill and restart engines, one at a time, and trouble the store, until cancelled."""
        fleet = self.fleet
        while True:
            await asyncio.sleep(self.chance.uniform(0.05, 0.2))
            kind = self.chance.choice(("prefill", "decode", "store", "time"))
            if kind == "store":
                self.store.cut()
                self.store.open.clear()
                await asyncio.sleep(0.1)
                self.store.open.set()
            elif kind == "time":
                fleet.clock.advance(self.chance.uniform(1, 40))
            else:
                await self.restart(fleet.prefill if kind == "prefill" else fleet.decode)

    async def restart(self, engines: list[EngineSim]) -> None:
        index = self.chance.randrange(len(engines))
        old = engines[index]
        self.killed += 1
        await old.stop()
        await asyncio.sleep(self.chance.uniform(0, 0.2))
        new = self.fleet.engine(replace(old.config, port=old.port))
        engines[index] = new
        await self.fleet.begin(new)
        await self.fleet.probed(new)


async def test_chaos() -> None:
    async with FakeValkey() as store:
        shared = {"valkey": {"url": store.url, "timeoutSeconds": 0.05}}
        async with Fleet(prefills=2, decodes=2, store=shared, leaseSeconds=60) as fleet:
            chaos = Chaos(fleet, store)
            disturbing = asyncio.ensure_future(chaos.disturb())
            await asyncio.gather(*(chaos.conversation(i) for i in range(CONVERSATIONS)))
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
            counters = (await fleet.router.reuse()).counters
        print(f"chaos: {dict(chaos.results)}, {chaos.killed} engines killed, {counters.reused_turns} turns reused")
        assert chaos.killed > 0
        assert set(chaos.results) <= {"right", "broken stream"}
        assert chaos.results["broken stream"] <= 16 * chaos.killed
        assert counters.reused_turns > 0
