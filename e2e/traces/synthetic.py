"""Conversations that were never held: their gaps and lengths are drawn from known distributions."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from kvloop.advice.published import QWEN3_32B, Model

SHARED_BLOCKS: Final = 2
"""Blocks of the system prompt, which all conversations have in common."""
BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class Traffic:
    """Gaps are exponential, and conversations begin by chance, independently of each other."""

    conversations: int
    between_seconds: float
    """Mean time between the begins of two conversations."""
    gap_seconds: float = 20.0
    """Mean gap between an answer and the next turn."""
    ended: float = 0.15
    """Share of the turns that are not followed."""
    first_tokens: tuple[int, int] = (1600, 6000)
    """Bounds of a first prompt's length: a block more than the shared ones, by which a trace can tell it apart."""
    model: Model = QWEN3_32B
    """Whose times an answer takes."""


@dataclass(frozen=True, slots=True)
class Request:
    """One turn. Times in seconds."""

    conversation: int
    number: int
    start: float
    end: float
    prompt: int
    output: int
    gap: float | None


def best_ttl(gap_seconds: float, ended: float, hold: float) -> float:
    """The best TTL where gaps are exponential and holding a turn pays for `hold` seconds, all in seconds.

    By hand: where the hazard of a return, its density by the share that may still return or has ended, is 1 / hold.
    """
    return gap_seconds * math.log((1 - ended) / ended * (hold / gap_seconds - 1))


def requests(traffic: Traffic, seed: int) -> list[Request]:
    """All turns, by rising arrival."""
    chance = random.Random(seed)  # noqa: S311 (synthetic data)
    made: list[Request] = []
    begin = 0.0
    for conversation in range(traffic.conversations):
        begin += chance.expovariate(1 / traffic.between_seconds)
        made += _conversation(traffic, conversation, begin, chance)
    return sorted(made, key=lambda each: each.start)


def _conversation(traffic: Traffic, conversation: int, begin: float, chance: random.Random) -> Iterator[Request]:
    prompt, start, gap = chance.randint(*traffic.first_tokens), begin, None
    for number in count(1):
        start, output = round(start, 3), chance.randint(150, 450)
        end = start + traffic.model.prefill.at(prompt) + output * traffic.model.decode_seconds
        yield Request(conversation, number, start, end, prompt, output, gap)
        if chance.random() < traffic.ended:
            return
        gap = chance.expovariate(1 / traffic.gap_seconds)
        start, prompt = end + gap, prompt + output + chance.randint(50, 250)


def mooncake(made: Sequence[Request]) -> Iterator[dict[str, Any]]:
    """As lines of a Mooncake trace: a block that the next turn fills up gets another number then."""
    numbers = count(SHARED_BLOCKS)
    known: dict[tuple[int, int], int] = {}
    for each in made:
        whole, rest = divmod(each.prompt, BLOCK)
        own = ((each.conversation, block) for block in range(SHARED_BLOCKS, whole))
        ids = [*range(SHARED_BLOCKS), *(known.setdefault(block, next(numbers)) for block in own)]
        yield {
            "timestamp": round(each.start * 1000),
            "input_length": each.prompt,
            "output_length": each.output,
            "hash_ids": [*ids, next(numbers)] if rest else ids,
        }


def bailian(made: Sequence[Request]) -> Iterator[dict[str, Any]]:
    """As lines of a Bailian trace."""
    last: dict[int, int] = {}
    for chat, each in enumerate(made):
        yield {
            "chat_id": chat,
            "parent_chat_id": last.get(each.conversation, -1),
            "timestamp": each.start,
            "input_length": each.prompt,
            "output_length": each.output,
            "type": "text",
            "turn": each.number,
            "hash_ids": [],
        }
        last[each.conversation] = chat


def router_log(
    made: Sequence[Request], model: Model, *, ttl: float, holdout: float, seed: int
) -> Iterator[dict[str, Any]]:
    """As lines of the router's access log, by rising end. Times scatter by 5 percent, and a tenth of the legs queue."""
    chance = random.Random(seed)  # noqa: S311 (synthetic data)
    held: dict[int, int] = {}
    out = {each.conversation for each in made if chance.random() < holdout}
    lines: list[dict[str, Any]] = []
    for each in made:
        history = held.get(each.conversation, 0)
        reused = history if each.gap is not None and each.gap <= ttl and each.conversation not in out else 0
        leg = model.prefill.at(each.prompt - reused) + (model.transfer.at(reused) if reused else 0)
        leg *= chance.lognormvariate(0, 0.05)
        wait = leg + (chance.expovariate(2) if chance.random() < 0.1 else 0)
        held[each.conversation] = each.prompt + each.output - 1
        follow_up = "holdout" if each.conversation in out else "reused" if reused else "recomputed"
        line: dict[str, Any] = {
            "time": round(1_700_000_000 + each.end, 3),
            "dialect": "chat",
            "stream": True,
            "status": 200,
            "arm": "first" if each.gap is None else follow_up,
            "turn": each.number,
            "promptTokens": each.prompt,
            "offeredTokens": reused,
            "reusedTokens": reused,
            "computedTokens": each.prompt - reused,
            "pinnedTokens": 0 if each.conversation in out else held[each.conversation],
            "gapMs": None if each.gap is None else round(each.gap * 1000, 1),
            "legMs": round(wait * 1000, 1),
            "firstByteMs": round(wait * 1000 + 15, 1),
            "totalMs": round((each.end - each.start) * 1000, 1),
        }
        lines.append({name: value for name, value in line.items() if value})
    return iter(sorted(lines, key=lambda line: line["time"]))
