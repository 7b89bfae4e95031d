"""Two turns of a conversation on a decode and a prefill engine, as a router holds them, and what they prove."""

import uuid
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final

from kvloop.api.labels import Role
from kvloop.cli.checks.engines import HANDLE, Engine, RefusedError, Reply
from kvloop.cli.checks.finding import Level
from kvloop.cli.load import prose

WORDS: Final = 300
"""Length of the first prompt, in words: several KV blocks."""
MARGIN_TOKENS: Final = 32
"""By how much a reply is longer than the threshold: prefill may have the prompt in its own prefix cache."""

STREAMS: Final = "Handles in streams"
FORTH: Final = "KV from prefill to decode"
BACK: Final = "KV from decode to prefill"
EQUAL: Final = "Answers with reused KV"
STEPS: Final = (FORTH, STREAMS, BACK, EQUAL)

WRONG: Final = (
    "repeat: rounding may turn a close choice; if it stays so, set transfer.bidirectional to false and report it with"
    " kvloop bundle"
)
_NETWORK: Final = (
    "let prefill and decode reach each other on all ports: NetworkPolicies, and with EFA the security group to itself;"
    " the engines' logs say more"
)
_LOG: Final = "see what the engine's log says of kvloop"
_SOURCE: Final = "vllm:prompt_tokens_by_source_total"
_FRESH: Final = {"do_remote_decode": True, "do_remote_prefill": False}


class ExchangeError(Exception):
    """The step `step` did not come out right; `detail` and `remedy` are for people."""

    def __init__(self, step: str, detail: str, remedy: str, level: Level = Level.FAIL) -> None:
        super().__init__(detail)
        self.step, self.detail, self.remedy, self.level = step, detail, remedy, level


@dataclass(frozen=True)
class Exchange:
    """A conversation with these engines; `threshold` is in tokens: less is not worth a transfer to them."""

    model: str
    prefill: Engine
    decode: Engine
    threshold: int

    async def run(self) -> None:
        """Hold it. Raises `ExchangeError` at the first step that fails, and `KubeError`."""
        messages = [{"role": "user", "content": prose(f"check {uuid.uuid4()}", WORDS)}]
        first = await self._first(messages)
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Go on, please."}]
        params = await self._back(messages, first.handle or {})
        try:
            second = await self.decode.stream({**self._body(messages), HANDLE: params})
        except RefusedError as error:
            raise ExchangeError(FORTH, str(error), _NETWORK) from error
        await self._release(second)
        # With a salt of its own it finds nothing in any cache: a cold computation.
        cold = await self.decode.stream({**self._body(messages), "cache_salt": uuid.uuid4().hex})
        if second.said != cold.said:
            detail = f"{self.decode.name} answers otherwise with KV from {self.prefill.name} than without"
            raise ExchangeError(EQUAL, detail, WRONG)

    async def _first(self, messages: list[dict[str, str]]) -> Reply:
        """The first turn: prefill computes, decode reads its KV, answers, and hands a handle out."""
        before = await self._read(self.decode)
        try:
            params = await self._prefill(messages, _FRESH)
            reply = await self.decode.stream({**self._body(messages), HANDLE: params})
        except RefusedError as error:
            raise ExchangeError(FORTH, str(error), _NETWORK) from error
        if await self._read(self.decode) <= before:
            raise ExchangeError(FORTH, f"{self.decode.name} has read nothing from {self.prefill.name}", _NETWORK)
        if reply.handle is None or "guard" not in reply.handle:
            what = "no handle" if reply.handle is None else "a handle without a guard"
            raise ExchangeError(STREAMS, f"{self.decode.name} streams {what}", _LOG)
        return reply

    async def _back(self, messages: list[dict[str, str]], handle: dict[str, Any]) -> dict[str, Any]:
        """The second turn's parameters for decode, once prefill has read what decode holds."""
        before = await self._read(self.prefill)
        try:
            params = await self._prefill(messages, handle)
        except RefusedError as error:
            raise ExchangeError(BACK, str(error), _NETWORK) from error
        report = params.pop("guard", None) or {}
        pair = f"{self.prefill.name} from {self.decode.name}"
        if not report.get("verified"):
            raise ExchangeError(BACK, f"nothing is taken by {pair}: {report.get('reason', 'no guard')}", _LOG)
        if await self._read(self.prefill) <= before:
            if report["verified"] < report["offered"]:
                detail = f"too little is left to be read by {pair}: the model's own words come back changed"
                raise ExchangeError(
                    BACK, detail, "see the chat template, and kvloop status for real traffic", Level.WARN
                )
            raise ExchangeError(BACK, f"nothing is read by {pair}", _NETWORK)
        return params

    async def _prefill(self, messages: list[dict[str, str]], handle: dict[str, Any]) -> dict[str, Any]:
        """A prefill leg: one token, and its parameters for decode."""
        body = {"model": self.model, "messages": messages, "max_tokens": 1, "temperature": 0, HANDLE: handle}
        answer = await self.prefill.chat(body)
        return dict(answer.get(HANDLE) or {})

    def _body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """A reply of so many tokens, neither more nor less."""
        tokens = self.threshold + MARGIN_TOKENS
        sizes = {"max_tokens": tokens, "min_tokens": tokens}
        return {"model": self.model, "messages": messages, "temperature": 0, **sizes}

    async def _read(self, engine: Engine) -> float:
        """Prompt tokens whose KV an engine has read from others so far."""
        return await engine.counter(_SOURCE, source="external_kv_transfer")

    async def _release(self, reply: Reply) -> None:
        """End decode's lease at once: prefill is offered nothing of it, and tells decode that it is done."""
        if reply.handle is not None:
            handle = {**reply.handle, "remote_num_tokens": 0}
            body = {"model": self.model, "prompt": [1], "max_tokens": 1, HANDLE: handle}
            await self.prefill.ask("/v1/completions", body)


def pairs(engines: list[Engine]) -> list[tuple[Engine, Engine]]:
    """Prefill and decode engines of one revision, so many that every engine is in a pair."""
    found = []
    usable = [each for each in engines if each.exchanges]
    for revision in sorted({each.revision for each in usable}):
        sides = {role: [each for each in usable if (each.role, each.revision) == (role, revision)] for role in Role}
        if all(sides.values()):
            most = max(map(len, sides.values()))
            found += list(zip(*(islice(cycle(side), most) for side in sides.values()), strict=True))
    return found
