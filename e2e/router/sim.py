"""A router before simulated engines, on one clock that tests move, and a cold engine to compare answers with."""

from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import orjson

from e2e.enginesim import Config, EngineSim, ManualClock, Transfer
from e2e.enginesim.api.chat import prompt_of
from e2e.router.harness import Router, config, eventually
from kvloop.engine import guard

BLOCK = 32
TTL_SECONDS = 120.0
THRESHOLD = 64
_PLUGIN = (guard, "0.1.0")


def engine_config(role: str, policy: str, *, prefix_caching: bool = True, reasoning: bool = False) -> Config:
    """An engine as the operator would start it."""
    transfer = Transfer(
        kv_role=role,
        kv_load_failure_policy=policy,
        bidirectional_kv_xfer=True,
        decoder_kv_blocks_ttl=TTL_SECONDS,
        kv_recompute_threshold=THRESHOLD,
    )
    return Config(
        model="tiny",
        host="127.0.0.1",
        port=0,
        block_size=BLOCK,
        lora_modules=("adapter",),
        prefix_caching=prefix_caching,
        auto_tool_choice=True,
        tool_call_parser="hermes",
        reasoning_parser="qwen3" if reasoning else None,
        transfer=transfer,
        side_channel_host="127.0.0.1",
        side_channel_port=0,
    )


class Fleet:
    """``async with Fleet() as fleet``: prefill engines without a prefix cache, decode engines, router, cold engine."""

    def __init__(self, prefills: int = 1, decodes: int = 1, *, reasoning: bool = False, **settings: Any) -> None:
        """`settings` are keys of the router's configuration; with `reasoning` the model thinks first."""
        self.clock = ManualClock()
        p = engine_config("kv_producer", "fail", prefix_caching=False, reasoning=reasoning)
        d = engine_config("kv_consumer", "recompute", reasoning=reasoning)
        self.prefill = [EngineSim(p, clock=self.clock, plugin=_PLUGIN) for _ in range(prefills)]
        self.decode = [EngineSim(d, clock=self.clock, plugin=_PLUGIN) for _ in range(decodes)]
        self._cold = EngineSim(replace(d, transfer=None), clock=self.clock, plugin=None)
        self._settings = settings

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for engine in (*self.prefill, *self.decode, self._cold):
                await stack.enter_async_context(engine)
            transfer = {"decoderKVBlocksTTLSeconds": TTL_SECONDS, "kvRecomputeThresholdTokens": THRESHOLD}
            urls = [e.url for e in self.prefill], [e.url for e in self.decode]
            settings = config(*urls, **{"transfer": transfer, **self._settings})
            self.router = await stack.enter_async_context(Router(settings, self.clock.now))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def restart(self, engines: list[EngineSim], index: int = 0) -> None:
        """End an engine at once and start another on its address; returns when the router has noticed."""
        old = engines[index]
        await old.stop()
        new = EngineSim(replace(old.config, port=old.port), clock=self.clock, plugin=_PLUGIN)
        engines[index] = await self._stack.enter_async_context(new)
        await self.probed(new)

    async def probed(self, engine: EngineSim) -> None:
        """Wait until the router knows the engine's present boot."""
        connector = engine.frontend.engine.connector
        assert connector is not None
        boots = self.router.app.pool.all
        await eventually(lambda: any(e.info.boot_id == connector.engine_id for e in boots()), "engine probed")

    async def cold(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> dict[str, Any]:
        """What an engine answers that has nothing to reuse."""
        async with self.router.session.post(self._cold.url + path, json={**body, "stream": False}) as answer:
            assert answer.status == 200, await answer.text()
            await self._forget()
            whole: dict[str, Any] = await answer.json()
            return whole

    async def _forget(self) -> None:
        async with self.router.session.post(self._cold.url + "/reset_prefix_cache") as answer:
            assert answer.status == 200

    async def turn(
        self, body: dict[str, Any], *, stream: bool = False, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """One chat turn through the router; fails unless the answer is a cold engine's. Returns the reply's message."""
        status, raw = await self.router.post({**body, "stream": stream}, headers=headers)
        assert status == 200, raw
        reply = from_stream(raw) if stream else orjson.loads(raw)["choices"][0]["message"]
        expected = (await self.cold(body))["choices"][0]["message"]
        assert essence(reply) == essence(expected)
        return {name: value for name, value in expected.items() if value}

    async def last_reuse(self) -> int:
        """Tokens reused since this was last asked."""
        total = (await self.router.reuse()).counters.reused_tokens
        new, self._reused = total - getattr(self, "_reused", 0), total
        return new


def leases(engine: EngineSim) -> int:
    """Requests whose blocks an engine keeps for others to read."""
    connector = engine.frontend.engine.connector
    return connector.open_leases if connector is not None else 0


def from_stream(raw: bytes) -> dict[str, Any]:
    """The message that a chat stream adds up to."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for event in raw.split(b"\n\n"):
        data = event.removeprefix(b"data: ")
        if not data or data == b"[DONE]":
            continue
        chunk = orjson.loads(data)
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls") or ():
                _add_call(message["tool_calls"], call)
    return message


def _add_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    function = piece["function"]
    if piece["index"] == len(calls):
        calls.append({"function": {"name": function["name"], "arguments": ""}})
    calls[piece["index"]]["function"]["arguments"] += function.get("arguments") or ""


def essence(message: dict[str, Any]) -> Any:
    """What must be equal: ids of tool calls are random."""
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    return message.get("content") or "", message.get("reasoning") or "", calls


def expected_reuse(first: dict[str, Any], reply_tokens: list[int], second: dict[str, Any]) -> int:
    """Tokens of `second`'s prompt that decode holds after `first` and its reply, as the guard may verify them."""
    held = (prompt_of(first) + reply_tokens)[:-1]
    prompt = prompt_of(second)
    same = next((i for i, (a, b) in enumerate(zip(held, prompt[:-1], strict=False)) if a != b), None)
    if same is None:
        same = min(len(held), len(prompt) - 1)
    tokens = same if same == len(held) else same // BLOCK * BLOCK
    return tokens if tokens >= THRESHOLD else 0
