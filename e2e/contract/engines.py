"""The engines under test. Each kind starts them its own way; the tests see URLs, time, and ends."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

from e2e.enginesim import Config, EngineSim, Knobs, ManualClock, Transfer
from kvloop import __version__
from kvloop.engine import guard

BLOCK = 32
TTL_S = 120.0
LEASE_S = 30.0
THRESHOLD = 64
MODEL = "tiny"
ADAPTER = "adapter"
VOCABULARY = 390


@dataclass(frozen=True)
class Setup:
    """How the engines of a test are started; the defaults are the operator's."""

    decodes: int = 1
    prefill_cache: bool = False
    guarded: bool = True
    prefill_policy: str = "fail"
    prefill_bidirectional: bool = True
    decode_bidirectional: bool = True
    decode_model: str = MODEL
    reasoning: bool = False
    vllm_version: str = "0.32.0"
    max_model_len: int = 4096
    kv_tokens: int = 65_536
    ttl_s: float = TTL_S


class Engines(Protocol):
    prefill: str
    """Base URL."""
    decode: list[str]
    block: int

    async def pass_time(self, seconds: float) -> None: ...
    async def kill(self, url: str) -> None: ...
    async def restart(self, url: str) -> None:
        """End an engine at once and start it again at the same addresses."""


class SimulatedEngines:
    """Simulated engines in this process, on a clock that stands still."""

    block = BLOCK

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.clock = ManualClock()
        self._engines: dict[str, EngineSim] = {}
        self._stack = AsyncExitStack()
        self.prefill = ""
        self.decode: list[str] = []

    async def start(self) -> None:
        setup = self._setup
        transfer = Transfer(
            bidirectional_kv_xfer=True,
            decoder_kv_blocks_ttl=setup.ttl_s,
            kv_lease_duration=LEASE_S,
            kv_recompute_threshold=THRESHOLD,
        )
        prefill = replace(
            transfer,
            kv_role="kv_producer",
            kv_load_failure_policy=setup.prefill_policy,
            bidirectional_kv_xfer=setup.prefill_bidirectional,
        )
        decode = replace(
            transfer,
            kv_role="kv_consumer",
            kv_load_failure_policy="recompute",
            bidirectional_kv_xfer=setup.decode_bidirectional,
        )
        self.prefill = await self._start(self._config(prefill, prefix_caching=setup.prefill_cache))
        for _ in range(setup.decodes):
            self.decode.append(await self._start(self._config(decode, model=setup.decode_model)))

    async def stop(self) -> None:
        await self._stack.aclose()

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def kill(self, url: str) -> None:
        await self._engines[url].stop()

    async def restart(self, url: str) -> None:
        old = self._engines[url]
        await old.stop()
        connector = old.frontend.engine.connector
        assert connector is not None
        config = replace(old.config, port=old.port, side_channel_port=connector.port)
        assert await self._start(config) == url

    def engine(self, url: str) -> EngineSim:
        return self._engines[url]

    async def _start(self, config: Config) -> str:
        plugin = (guard, __version__) if self._setup.guarded else None
        engine = await self._stack.enter_async_context(EngineSim(config, clock=self.clock, plugin=plugin))
        self._engines[engine.url] = engine
        return engine.url

    def _config(self, transfer: Transfer, **more: Any) -> Config:
        settings: dict[str, Any] = {"model": MODEL, **more}
        return Config(
            served_model_names=(MODEL,),
            host="127.0.0.1",
            port=0,
            block_size=BLOCK,
            max_model_len=self._setup.max_model_len,
            lora_modules=(ADAPTER,),
            auto_tool_choice=True,
            tool_call_parser="hermes",
            reasoning_parser="qwen3" if self._setup.reasoning else None,
            prompt_tokens_details=True,
            transfer=transfer,
            side_channel_host="127.0.0.1",
            side_channel_port=0,
            knobs=Knobs(vllm_version=self._setup.vllm_version, kv_tokens=self._setup.kv_tokens),
            **settings,
        )
