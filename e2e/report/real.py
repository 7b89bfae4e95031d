"""The same conversations on two real vLLM engines with a tiny model on this machine's CPU, in real time."""

import asyncio
import tempfile
from pathlib import Path
from typing import Final

from e2e.engine.fleet import Fleet
from e2e.engine.server import MODEL
from e2e.router.harness import Router, config
from kvloop.cli.load import Client, Turn, Workload

LOAD: Final = Workload(
    conversations=8, turns=5, clients=1, system_tokens=(500, 1000, 2000, 3000), user_tokens=50, reply_tokens=20
)


def run() -> dict[str, list[Turn]]:
    """Turns with reuse and without."""
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder))
        try:
            fleet.start("prefill", "decode")
            return {name: asyncio.run(_turns(fleet, bidirectional=name == "on")) for name in ("off", "on")}
        finally:
            fleet.stop()


async def _turns(fleet: Fleet, *, bidirectional: bool) -> list[Turn]:
    prefill, decode = ([fleet.engines[name].url] for name in ("prefill", "decode"))
    settings = config(prefill, decode, transfer={"bidirectional": bidirectional, "decoderKVBlocksTTLSeconds": 30})
    async with Router(settings) as router, Client(router.url, MODEL) as client:
        await client.run(Workload(conversations=1, turns=2, clients=1, system_tokens=(200,), seed="warm-up"))
        return await client.run(LOAD)
