"""A router before simulated engines, on one clock that tests move, and a cold engine to compare answers with."""

from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import orjson

from e2e.enginesim import Config, EngineSim, ManualClock, Transfer
from e2e.router.harness import Router, config, eventually
from e2e.router.talk import Chat, essence
from kvloop.engine import guard

BLOCK = 32
KV_BLOCKS = 2048
"""Of each engine: few, since hundreds of engines are made, and made garbage, faster than it is collected."""
TTL_SECONDS = 120.0
THRESHOLD = 64
CHAT = Chat()
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
        num_gpu_blocks=KV_BLOCKS,
        max_model_len=KV_BLOCKS * BLOCK,
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
        self.prefill = [self.engine(p) for _ in range(prefills)]
        self.decode = [self.engine(d) for _ in range(decodes)]
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

    def engine(self, engine_config: Config) -> EngineSim:
        """An engine on this fleet's clock, with the plugin."""
        return EngineSim(engine_config, clock=self.clock, plugin=_PLUGIN)

    async def begin(self, engine: EngineSim) -> None:
        """Start an engine; it ends with the fleet."""
        await self._stack.enter_async_context(engine)

    async def restart(self, engines: list[EngineSim], index: int = 0) -> None:
        """End an engine at once and start another on its address; returns when the router has noticed."""
        old = engines[index]
        await old.stop()
        engines[index] = self.engine(replace(old.config, port=old.port))
        await self.begin(engines[index])
        await self.probed(engines[index])

    async def probed(self, engine: EngineSim) -> None:
        """Wait until the router knows the engine's present boot."""
        connector = engine.frontend.engine.connector
        assert connector is not None
        boots = self.router.app.pool.all
        await eventually(lambda: any(e.info.boot_id == connector.engine_id for e in boots()), "engine probed")

    async def cold(self, body: dict[str, Any], path: str = Chat.path) -> dict[str, Any]:
        """What an engine answers that has nothing to reuse."""
        async with self.router.session.post(self._cold.url + path, json={**body, "stream": False}) as answer:
            assert answer.status == 200, await answer.text()
            whole: dict[str, Any] = await answer.json()
        async with self.router.session.post(self._cold.url + "/reset_prefix_cache") as answer:
            assert answer.status == 200
        return whole

    async def turn(
        self,
        body: dict[str, Any],
        *,
        dialect: Chat = CHAT,
        stream: bool = False,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """One turn, told as a chat request; fails unless the reply is a cold engine's. Returns the reply."""
        sent = dialect.encode(body)
        status, raw = await self.router.post({**sent, "stream": stream}, path=dialect.path, headers=headers)
        assert status == 200, raw
        assert b"kv_transfer_params" not in raw
        reply = dialect.stream(raw) if stream else dialect.whole(orjson.loads(raw))
        assert essence(reply) == essence(dialect.whole(await self.cold(sent, dialect.path)))
        return reply

    async def reply_tokens(self, body: dict[str, Any], dialect: Chat) -> list[int]:
        """Tokens of the reply to a turn, told as a chat request."""
        path, twin = dialect.twin(body)
        whole = await self.cold({**twin, "return_token_ids": True}, path)
        tokens: list[int] = whole["choices"][0]["token_ids"]
        return tokens

    async def last_reuse(self) -> int:
        """Tokens reused since this was last asked."""
        total = (await self.router.reuse()).counters.reused_tokens
        new, self._reused = total - getattr(self, "_reused", 0), total
        return new


def leases(engine: EngineSim) -> int:
    """Requests whose blocks an engine keeps for others to read."""
    connector = engine.frontend.engine.connector
    return connector.open_leases if connector is not None else 0


def expected_reuse(held: list[int], prompt: list[int]) -> int:
    """Tokens of a prompt that decode holds, as the guard may verify them."""
    same = next((i for i, (a, b) in enumerate(zip(held, prompt[:-1], strict=False)) if a != b), None)
    if same is None:
        same = min(len(held), len(prompt) - 1)
    tokens = same if same == len(held) else same // BLOCK * BLOCK
    return tokens if tokens >= THRESHOLD else 0
