"""Public traces: when prompts came, how long they were, and which blocks of them were seen before.

Mooncake (FAST'25): `timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids` of blocks of 512 tokens,
each of which also stands for all before it. Bailian (Qwen): `timestamp` in seconds, the same lengths, and `chat_id` and
`parent_chat_id`, -1 for a first turn.

Neither says when an answer ended, so that is calculated from a published system's times. The reply is taken to have
come back unchanged where the next prompt has room for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kvloop.advice.published import Model
from kvloop.advice.turns import Turn
from kvloop.cli.traces.loaded import FieldError, Loaded, Reader, Row, number, whole

MOONCAKE_BLOCK: Final = 512
"""Tokens."""
WANTED: Final = (
    "a line of JSON a request: Mooncake's (timestamp, input_length, output_length, hash_ids), or Bailian's (chat_id and"
    " parent_chat_id besides)"
)


@dataclass(frozen=True, slots=True)
class _Request:
    """One line of either format."""

    seconds: float
    input_length: int
    output_length: int
    blocks: tuple[int, ...] = ()
    chat: int | None = None
    parent: int | None = None


def read_trace(file: str, model: Model) -> Loaded:
    """Turns of a Mooncake or Bailian trace; `-` is standard input.

    Raises:
        TraceError: nothing of it can be used.
    """
    reader = Reader(file, strict=True)
    requests = []
    for line, row in reader.rows():
        try:
            requests.append(_request(row))
        except FieldError as error:
            reader.wrong(line, str(error))
    if not requests:
        raise reader.nothing(WANTED)
    requests.sort(key=lambda each: each.seconds)
    bailian = requests[0].chat is not None
    before = _by_chat(requests) if bailian else _by_blocks(requests)
    turns = _turns(requests, before, model)
    return Loaded(reader.name, "Bailian trace" if bailian else "Mooncake trace", turns, [], reader.bad)


def _request(row: Row) -> _Request:
    lengths = whole(row, "input_length"), whole(row, "output_length")
    if "chat_id" in row:
        parent = row.get("parent_chat_id", -1)
        first = parent in (None, -1)
        ids = whole(row, "chat_id"), None if first else whole(row, "parent_chat_id")
        return _Request(number(row, "timestamp"), *lengths, chat=ids[0], parent=ids[1])
    if "hash_ids" not in row:
        raise FieldError(f"neither hash_ids nor chat_id is there; it has {', '.join(sorted(row)) or 'nothing'}")
    return _Request(number(row, "timestamp") / 1000, *lengths, blocks=_blocks(row["hash_ids"]))


def _blocks(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise FieldError(f"hash_ids is {value!r:.40}, which is no list of whole numbers")
    return tuple(value)


def _by_chat(requests: Sequence[_Request]) -> list[int | None]:
    """Which request each one follows; of several that follow the same one, the first."""
    at = {request.chat: i for i, request in enumerate(requests)}
    taken: set[int] = set()
    before: list[int | None] = []
    for i, request in enumerate(requests):
        parent = None if request.parent is None else at.get(request.parent)
        usable = parent is not None and parent < i and parent not in taken
        before.append(parent if usable else None)
        if usable and parent is not None:
            taken.add(parent)
    return before


def _by_blocks(requests: Sequence[_Request]) -> list[int | None]:
    """The same from blocks: a request follows the latest one whose whole blocks its prompt begins with.

    It must also have room for the reply. Many prompts share their first blocks, so only who has a block of its own, or
    follows somebody, can be followed in turn.
    """
    ends: dict[int, int] = {}
    seen: set[int] = set()
    before: list[int | None] = []
    for i, request in enumerate(requests):
        at = next((block for block in reversed(request.blocks) if _extends(request, requests, ends.get(block))), None)
        before.append(None if at is None else ends.pop(at))
        whole_blocks = request.blocks[: request.input_length // MOONCAKE_BLOCK]
        if whole_blocks and (at is not None or whole_blocks[-1] not in seen):
            ends[whole_blocks[-1]] = i
        seen.update(whole_blocks)
    return before


def _extends(request: _Request, requests: Sequence[_Request], other: int | None) -> bool:
    if other is None:
        return False
    earlier = requests[other]
    return request.input_length >= earlier.input_length + earlier.output_length


def _turns(requests: Sequence[_Request], before: Sequence[int | None], model: Model) -> list[Turn]:
    turns: list[Turn] = []
    for request, previous in zip(requests, before, strict=True):
        seconds = model.prefill.at(request.input_length) + model.decode_seconds * request.output_length
        turn = Turn(
            start=request.seconds,
            end=request.seconds + seconds,
            prompt_tokens=request.input_length,
            held_tokens=max(0, request.input_length + request.output_length - 1),
        )
        if previous is not None:
            followed = turns[previous]
            ended = min(followed.end, turn.start)
            turns[previous] = replace(followed, end=ended)
            history = min(followed.held_tokens, max(0, turn.prompt_tokens - 1))
            turn = replace(turn, before=previous, gap=turn.start - ended, history_tokens=history)
        turns.append(turn)
    return turns
