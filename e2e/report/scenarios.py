"""What the report runs: the published test beds, prefill's own cache, other traffic, and decode's memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from e2e.report.bed import Setup, Talk
from kvloop.cli.load import Client, Turn, Workload, prose


@dataclass(frozen=True)
class Published:
    """Mean times to the first token in milliseconds, at the shortest and the longest system prompt."""

    title: str
    lengths: tuple[int, ...]
    off: tuple[float, float]
    on: tuple[float, float]


PUBLISHED: Final[Mapping[str, Published]] = {
    "qwen3-32b": Published("Qwen3-32B", (2000, 4000, 8000, 12_000, 16_000, 20_000, 24_000), (158, 778), (122, 460)),
    "glm-5-fp8": Published("GLM-5-FP8", (2000, 4000, 8000, 12_000, 16_000, 20_000), (500, 2334), (358, 702)),
}
"""vLLM blog, October 2026, "Improve TTFT for Multi-Turn Agentic Workloads with Bi-Directional KV Transfer in vLLM"."""

LOAD: Final = Workload(conversations=5, turns=10, clients=2, user_tokens=150, reply_tokens=300)
"""Turns, messages and replies as published, and half of the conversations."""
SYSTEM_TOKENS: Final = 8000
PAUSE_SECONDS: Final = 60
SHORT_TTL: Final = 30


def load(system_tokens: int) -> Workload:
    """Conversations with system prompts of one length."""
    return replace(LOAD, system_tokens=(system_tokens,))


async def edited(client: Client) -> list[Turn]:
    """Conversations whose system prompt begins with the time of day, so that each turn's history is another one."""
    turns: list[Turn] = []
    for conversation in range(LOAD.conversations):
        body = prose(f"system {conversation}", SYSTEM_TOKENS / 2)
        said: tuple[dict[str, str], ...] = ()
        for number in range(LOAD.turns):
            said += ({"role": "user", "content": prose(f"user {conversation} {number}", LOAD.user_tokens / 2)},)
            messages = ({"role": "system", "content": f"It is {number} past nine. {body}"}, *said)
            request = client.body(messages, LOAD.reply_tokens)
            reply = await client.stream(request)
            turns.append(
                Turn(conversation, number, SYSTEM_TOKENS, reply.prompt_tokens, reply.ttft_s, request, reply.text)
            )
            said += ({"role": "assistant", "content": reply.text},)
    return turns


TRAFFIC: Final[Mapping[str, tuple[Setup, Workload | Talk]]] = {
    "turns follow at once": (Setup(), load(SYSTEM_TOKENS)),
    f"pauses of {PAUSE_SECONDS} s": (Setup(), replace(load(SYSTEM_TOKENS), pause_s=PAUSE_SECONDS)),
    f"pauses of {PAUSE_SECONDS} s, TTL of {SHORT_TTL} s": (
        Setup(ttl_seconds=SHORT_TTL),
        replace(load(SYSTEM_TOKENS), pause_s=PAUSE_SECONDS),
    ),
    "one turn each": (Setup(), replace(load(SYSTEM_TOKENS), conversations=50, turns=1)),
    "the time of day in the system prompt": (Setup(), edited),
}
"""Each with and without reuse."""

CACHES: Final[Mapping[str, Setup]] = {
    "off, as published": Setup(),
    "on, holds all": Setup(prefill_cache=True),
    "on, holds two conversations": Setup(prefill_cache=True, prefill_capacity=2 * 32_768),
}
"""Prefill's own prefix cache."""

MEMORY: Final[Mapping[str, Setup]] = {
    "TTL 30 s": Setup("glm-5-fp8", ttl_seconds=30),
    "TTL 120 s": Setup("glm-5-fp8", ttl_seconds=120),
    "TTL 480 s": Setup("glm-5-fp8", ttl_seconds=480),
    "TTL 480 s, at most 30 % pinned": Setup("glm-5-fp8", ttl_seconds=480, max_pinned_percent=30),
}
MEMORY_LOAD: Final = replace(load(16_000), conversations=12, turns=6, clients=4, pause_s=45)
