"""Reads engines' /metrics: whether they answer, whether the guard runs, whether they restarted."""

import asyncio
import re

import aiohttp

from kvloop.router.pool import UNKNOWN, Engine, EngineInfo

TIMEOUT_SECONDS = 5.0
MAX_MISSED = 2
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_GUARD = "kvloop_engine_info{"
_CACHE = "vllm:cache_config_info{"


def understand(metrics: str) -> EngineInfo:
    """What an engine's metrics say of it."""
    guard, cache = _labels(metrics, _GUARD), _labels(metrics, _CACHE)
    blocks, size = cache.get("num_gpu_blocks", ""), cache.get("block_size", "")
    return EngineInfo(
        probed=True,
        guard_active=guard.get("active") == "1",
        boot_id=guard.get("boot_id", ""),
        capacity_tokens=int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else 0,
    )


def _labels(metrics: str, name: str) -> dict[str, str]:
    start = metrics.find("\n" + name)
    if start < 0 and not metrics.startswith(name):
        return {}
    line = metrics[start + 1 : metrics.find("\n", start + 1)] if start >= 0 else metrics.split("\n", 1)[0]
    return dict(_LABEL.findall(line))


async def probe(session: aiohttp.ClientSession, engine: Engine) -> None:
    """Ask one engine. One probe that is late says nothing yet: a busy engine is slow to tell its metrics."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), session.get(f"http://{engine.address}/metrics") as answer:
            answer.raise_for_status()
            engine.info = understand(await answer.text())
        engine.healthy, engine.missed_probes = True, 0
    except TimeoutError:
        engine.missed_probes += 1
        engine.healthy = engine.healthy and engine.missed_probes < MAX_MISSED
    except (aiohttp.ClientError, OSError, ValueError):  # ValueError: no text, or no number where one belongs
        engine.healthy, engine.info = False, UNKNOWN
