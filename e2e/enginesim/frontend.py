"""Between HTTP and the engine core, where vLLM's ``AsyncLLM`` is, and kvloop's plugin with it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
from array import array
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Gauge

from e2e.enginesim.config import Features
from e2e.enginesim.engine import Engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import ModuleType

    from e2e.enginesim.clock import Clock
    from e2e.enginesim.config import Config
    from e2e.enginesim.request import Request, Step

log = logging.getLogger("enginesim")

_GROUP, _NAME = "vllm.general_plugins", "kvloop"


def installed_plugin() -> tuple[ModuleType, str] | None:
    """Kvloop's guard module and version, if its plugin is installed and VLLM_PLUGINS permits it."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and _NAME not in allowed.split(","):
        return None
    for entry in importlib.metadata.entry_points(group=_GROUP, name=_NAME):
        guard = importlib.import_module(entry.module.rpartition(".")[0] + ".guard")
        return guard, entry.dist.version if entry.dist is not None else "unknown"
    return None


class Frontend:
    """One API server on one engine core. `plugin` is what `installed_plugin` returns."""

    def __init__(self, config: Config, clock: Clock, plugin: tuple[ModuleType, str] | None) -> None:
        self.engine = Engine(config, clock, guarded=plugin is not None)
        self.features = Features.of(config.knobs.vllm_version)
        self.guard = plugin[0] if plugin is not None else None
        self._groups: int | None = None
        self._spent = None
        if self.guard is not None:
            self._spent = importlib.import_module(f"{self.guard.__package__}.spent").Spent(None)
        self.draining = asyncio.Event()
        self.frozen = asyncio.Event()
        if plugin is not None:
            self._export(config, plugin[1])

    @property
    def adds_stream_event(self) -> bool:
        """Whether the plugin has to send the handle of a stream, because this vLLM does not."""
        return self.guard is not None and not self.features.handle_in_stream

    async def generate(self, request: Request) -> AsyncGenerator[Step, None]:
        """Run a request through the guard and the engine; closing the iterator aborts it."""
        if self.draining.is_set():
            await asyncio.Event().wait()  # vLLM accepts requests while it drains, and leaves most unanswered
        report = self._check(request)
        steps = self.engine.generate(request)
        try:
            async for step in steps:
                if self.frozen.is_set():
                    await asyncio.Event().wait()
                if step.kv_transfer_params is not None:
                    self._sign(request, step.kv_transfer_params, report)
                yield step
        finally:
            await steps.aclose()

    def reject(self, kv_params: Any) -> None:
        """Let go of the blocks that a request refused for its length came to read, as vLLM does for decode legs."""
        connector = self.engine.connector
        if connector is not None and isinstance(kv_params, dict) and kv_params.get("do_remote_prefill"):
            connector.notify_owner(kv_params, "of a refused request")

    def _key(self, request: Request) -> bytes:
        assert self.guard is not None
        key: bytes = self.guard.seed(request.lora, request.cache_salt)
        return key

    def _check(self, request: Request) -> dict[str, Any] | None:
        if self.guard is None or not request.kv_params:
            return None
        report = self.guard.shrink(
            request.kv_params,
            request.prompt,
            self._key(request),
            text_only=request.text_only,
            groups=self._groups,
            block_size=self.engine.config.block_size,
            spent=self._spent,
        )
        if report is None:
            return None
        self._handles.labels(report.reason).inc()
        self._offered.inc(report.offered)
        self._verified.inc(report.verified)
        told: dict[str, Any] = report.as_dict()
        return told

    def _sign(self, request: Request, handle: dict[str, Any], report: dict[str, Any] | None) -> None:
        if self.guard is None:
            return
        self._groups = len(handle["remote_block_ids"])
        if report is not None and not handle["do_remote_decode"]:
            handle["guard"] = report
        if request.text_only:
            size, prompt = self.engine.config.block_size, array("I", request.prompt)
            self.guard.sign(handle, prompt, request.output, size, self._key(request))

    def _export(self, config: Config, version: str) -> None:
        connector = self.engine.connector
        labels = {
            "plugin_version": version,
            "vllm_version": config.knobs.vllm_version,
            "role": config.transfer.kv_role if config.transfer is not None else "",
            "active": "1",
            "block_size": str(config.block_size),
            "boot_id": connector.engine_id if connector is not None else "",
        }
        registry = self.engine.metrics.registry
        info = Gauge("kvloop_engine_info", "kvloop's engine plugin.", list(labels), registry=registry)
        info.labels(**labels).set(1)
        self._handles = Counter("kvloop_guard_handles", "Handles that offered KV.", ["reason"], registry=registry)
        self._offered = Counter("kvloop_guard_offered_tokens", "Tokens that handles offered.", registry=registry)
        self._verified = Counter("kvloop_guard_verified_tokens", "Offered tokens found equal.", registry=registry)
