"""One JSON line a turn on standard output, without any content."""

import time
from typing import BinaryIO

import orjson

from kvloop.router.outcome import Outcome


def write(out: BinaryIO, outcome: Outcome) -> None:
    """Log a turn; fields that say nothing are left out."""
    line: dict[str, object] = {
        "time": round(time.time(), 3),
        "dialect": outcome.dialect,
        "stream": outcome.stream,
        "status": outcome.status,
        "arm": outcome.arm,
        "turn": outcome.turn,
        "endOfConversation": outcome.ends,
        "prefill": outcome.prefill,
        "decode": outcome.decode,
        "promptTokens": outcome.prompt_tokens,
        "offeredTokens": outcome.offered_tokens,
        "reusedTokens": outcome.reused_tokens,
        "computedTokens": outcome.computed_tokens,
        "pinnedTokens": outcome.pinned_tokens,
        "miss": outcome.miss,
        "notEligible": outcome.not_eligible,
        "decodeOnly": outcome.decode_only,
        "retries": outcome.retries,
        "gapMs": _milliseconds(outcome.gap_seconds),
        "heldMs": _milliseconds(outcome.held_seconds),
        "prefillMs": _milliseconds(outcome.prefill_seconds),
        "legMs": _milliseconds(outcome.leg_seconds),
        "firstByteMs": _milliseconds(outcome.first_byte_seconds),
        "totalMs": _milliseconds(outcome.total_seconds),
    }
    out.write(orjson.dumps({name: value for name, value in line.items() if value}, option=orjson.OPT_APPEND_NEWLINE))
    out.flush()


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
