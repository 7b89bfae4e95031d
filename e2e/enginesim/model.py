"""The simulated language model: the next token is a function of all the KV content that the request reads.

A wrong, stale or shifted block anywhere in the context therefore changes the reply. The text is made of pronounceable
words whose tokens survive being decoded and encoded again, so that a conversation replayed as text extends the tokens
that the decode engine holds, as it mostly does with real models; ``ENGINESIM_DRIFT_PERCENT`` makes it drift.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from e2e.enginesim import tokenizer
from e2e.enginesim.content import mix

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.enginesim.config import Knobs

_SYLLABLES = [c + v + d for c in "bdfgklmnprstvz" for v in "aeiou" for d in "klmnrst"]
_INNER = [tokenizer.IDS[s.encode()] for s in _SYLLABLES]
_START = [tokenizer.IDS[b" " + s.encode()] for s in _SYLLABLES]
_FIRST = [tokenizer.IDS[s.capitalize().encode()] for s in _SYLLABLES]
_PUNCTUATION = [tokenizer.IDS[b] for b in (b",", b".", b";", b":")]
_OPEN_ENDED = frozenset((*_INNER, *_START, *_FIRST))  # a syllable may follow without a space
_WORDS_IN_THOUGHT = 24


@dataclass(frozen=True)
class Style:
    """What kind of reply the prompt asks for."""

    thinks: bool = False
    tools: tuple[dict[str, object], ...] = ()
    """The functions to be called, in order; empty for a reply in words."""
    form: str = "native"
    """How calls are written: ``native`` in the template's tags, demanded ones too if there is a parser for them;
    without one, guided decoding writes a JSON ``list``, or the bare arguments of the ``named`` function."""


@dataclass
class Sampler:
    """Chooses the tokens of one reply."""

    knobs: Knobs
    style: Style
    may_end: bool
    min_tokens: int = 0
    _script: deque[int] = field(default_factory=deque)
    _started: bool = False
    _thinking: int = 0
    _ends: bool = False
    _count: int = 0

    def next(self, fold: int, previous: int) -> int:
        """The token after a context with that `fold` that ends with `previous`."""
        chance = mix(fold ^ mix(self.knobs.seed))
        if not self._started:
            self._start(chance)
        token = self._choose(chance, previous)
        self._count += 1
        return token

    def _start(self, chance: int) -> None:
        self._started = True
        if self.style.thinks:
            self._script.extend(tokenizer.encode("<think>\n"))
            self._thinking = 4 + chance % _WORDS_IN_THOUGHT
        elif self.style.tools:
            self._call_tools(chance)

    def _call_tools(self, chance: int) -> None:
        calls = [(str(tool["name"]), _arguments(tool, mix(chance + i))) for i, tool in enumerate(self.style.tools)]
        if self.style.form == "native":
            text = "\n".join(render_tool_call(name, arguments) for name, arguments in calls)
        elif self.style.form == "list":
            text = orjson.dumps([{"name": name, "parameters": arguments} for name, arguments in calls]).decode()
        else:
            text = orjson.dumps(calls[0][1]).decode()
        self._script.extend(tokenizer.encode(text))
        self._ends = True

    def _choose(self, chance: int, previous: int) -> int:
        if self._script:
            return self._script.popleft()
        if self._thinking:
            self._thinking -= 1
            if self._thinking == 0:
                self._script.extend(tokenizer.encode("\n</think>\n\n"))
                if self.style.tools:
                    self._call_tools(chance)
            return self._word(chance, previous)
        mean = self.knobs.mean_reply_tokens
        wants_end = self._ends or (mean > 0 and (chance >> 40) % mean == 0)
        if wants_end and self.may_end and self._count >= self.min_tokens:
            return tokenizer.EOS
        return self._word(chance, previous)

    def _word(self, chance: int, previous: int) -> int:
        if (chance >> 20) % 10_000 < self.knobs.drift_percent * 100:
            return ord("a") + chance % 26  # a letter as a byte: its text encodes to another token
        syllable = (chance >> 8) % len(_SYLLABLES)
        if tokenizer.PIECES[previous] == b"\n":
            return _FIRST[syllable]
        if previous in _OPEN_ENDED:
            kind = (chance >> 32) % 16
            if kind < 5:
                return _INNER[syllable]
            if kind == 5:
                return _PUNCTUATION[syllable % len(_PUNCTUATION)]
        return _START[syllable]


def _arguments(tool: dict[str, object], chance: int) -> dict[str, object]:
    """Arguments that fit a function's schema and depend on `chance`."""
    schema = tool.get("parameters")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return {
        name: _argument(kind, mix(chance + i)) for i, (name, kind) in enumerate((properties or {}).items(), start=1)
    }


def render_tool_call(name: str, arguments: object) -> str:
    body = orjson.dumps({"name": name, "arguments": arguments}).decode()
    return f"<tool_call>\n{body}\n</tool_call>"


def _argument(schema: object, chance: int) -> object:
    kind = schema.get("type") if isinstance(schema, dict) else None
    options = schema.get("enum") if isinstance(schema, dict) else None
    if isinstance(options, list) and options:
        return options[chance % len(options)]
    makers: dict[object, Callable[[], object]] = {
        "integer": lambda: chance % 1000,
        "number": lambda: chance % 1000 / 4,
        "boolean": lambda: bool(chance % 2),
        "array": list,
        "object": dict,
    }
    return makers.get(kind, lambda: _SYLLABLES[chance % len(_SYLLABLES)])()
