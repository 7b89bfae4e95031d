"""The engines of the tier: started once, when a test first needs them, and left running."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.contract.client import Client, eventually
from e2e.contract.engines import THRESHOLD, Setup
from e2e.engine import server
from e2e.engine.server import Server

TTL_S: Final = 30
LEASE_S: Final = 10
"""Short, so that what a test cannot give back is free soon; long for a turn, which takes some tenths of a second."""
_THINKING = ["--reasoning-parser", "qwen3"]
_ADAPTERS: Final = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
_ENGINES: Final[dict[str, tuple[str, Sequence[str], dict[str, str]]]] = {
    "prefill": (
        "kv_producer",
        ["--no-enable-prefix-caching", "--enable-scale-out"],
        {**_ADAPTERS, "VLLM_SERVER_DEV_MODE": "1"},
    ),  # with all of vLLM's APIs
    "prefill-cached": ("kv_producer", ["--enable-prefix-caching"], {}),
    "decode": ("kv_consumer", ["--enable-prefix-caching"], _ADAPTERS),
    "decode-2": ("kv_consumer", ["--enable-prefix-caching", "--api-server-count", "2", *_THINKING], {}),
    "unguarded": ("kv_producer", ["--no-enable-prefix-caching"], {"VLLM_PLUGINS": "another"}),
}


class Fleet:
    """All engines by name; `folder` takes their logs and the plugin."""

    def __init__(self, folder: Path) -> None:
        plugin = server.deliver(folder / "plugin")
        self._running: set[str] = set()
        self.engines = {
            name: Server(name, _transfer(role), folder, args=args, env={"PYTHONPATH": str(plugin), **env})
            for name, (role, args, env) in _ENGINES.items()
        }

    def start(self, *names: str) -> None:
        """Start those that do not run, all at once, and wait for them."""
        missing = [name for name in names if name not in self._running]
        self._running.update(missing)
        for name in missing:
            self.engines[name].start()
        for name in missing:
            self.engines[name].wait_ready()

    def stop(self, *names: str) -> None:
        """End some at once, or all."""
        for name in names or list(self._running):
            self._running.discard(name)
            self.engines[name].kill()

    def named(self, url: str) -> str:
        return next(name for name, engine in self.engines.items() if engine.url == url)

    @property
    def running(self) -> list[Server]:
        return [self.engines[name] for name in sorted(self._running)]


def _transfer(role: str) -> dict[str, Any]:
    return {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_load_failure_policy": "fail" if role == "kv_producer" else "recompute",
        "kv_connector_extra_config": {
            "bidirectional_kv_xfer": True,
            "decoder_kv_blocks_ttl": TTL_S,
            "kv_lease_duration": LEASE_S,
            "kv_recompute_threshold": THRESHOLD,
        },
    }


@dataclass
class RealEngines:
    """Those that one test sees."""

    fleet: Fleet
    prefill: str
    decode: list[str]
    block: int = field(default=server.BLOCK_SIZE)

    @classmethod
    def of(cls, fleet: Fleet, setup: Setup) -> "RealEngines":
        """Engines as a test of the contract asks for them."""
        if setup not in (Setup(decodes=setup.decodes, prefill_cache=setup.prefill_cache), Setup(guarded=False)):
            raise ValueError(f"no such engines are started: {setup}")
        if setup.guarded:
            prefill = "prefill-cached" if setup.prefill_cache else "prefill"
            fleet.start("prefill", "prefill-cached", "decode", "decode-2")
        else:
            prefill = "unguarded"
            fleet.stop("prefill-cached", "decode-2")  # five engines take more memory than small machines have
            fleet.start("prefill", "decode", "unguarded")
        decodes = ["decode", "decode-2"][: setup.decodes]
        return cls(fleet, fleet.engines[prefill].url, [fleet.engines[name].url for name in decodes])

    async def pass_time(self, seconds: float) -> None:
        raise RuntimeError(f"a real engine's clock cannot be moved by {seconds} s")

    async def kill(self, url: str) -> None:
        await asyncio.to_thread(self.fleet.stop, self.fleet.named(url))

    async def restart(self, url: str) -> None:
        await self.kill(url)
        await asyncio.to_thread(self.fleet.start, self.fleet.named(url))

    async def settle(self, client: Client) -> None:
        """End all leases that a test has left open, and wait until nothing is pinned anywhere."""
        engines = self.fleet.engines
        # The prefill engine under test may have used the handle and then refuses it.
        other = engines["prefill-cached" if self.prefill == engines["prefill"].url else "prefill"].url
        while client.leases:
            _, handle = client.leases.popitem()
            if handle["do_remote_decode"]:
                await client.complete(other, [5], {**handle, "remote_num_tokens": 0})
            else:
                await client.complete(self.decode[0], [5] * (server.MAX_LENGTH + 1), handle)

        async def settled() -> bool:
            return not any([await client.pinned(engine.url) for engine in self.fleet.running])

        await eventually(settled, "all blocks free", seconds=2 * TTL_S)
