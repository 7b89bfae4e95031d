"""The NIXL pull connector, both ends: what to read for a request, and what to keep for others to read.

Follows vLLM 0.32's scheduler and worker side by side, with everything they do not check: tokens are never compared, the
last remote blocks are read whatever they hold, and a lease that has ended does not stop a read.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from e2e.enginesim.clock import pause
from e2e.enginesim.config import Features
from e2e.enginesim.sidechannel import Remote, Remotes, SideChannelServer, TransferError

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.enginesim.blocks import BlockPool
    from e2e.enginesim.clock import Clock, Timer
    from e2e.enginesim.config import Config, Transfer
    from e2e.enginesim.metrics import Metrics
    from e2e.enginesim.request import Request

EXPIRY_MARGIN_S = 5.0  # fixed in vLLM
_LOCATION = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")

log = logging.getLogger("enginesim.nixl")


class EngineDeadError(Exception):
    """An assertion inside the engine core failed; the whole engine is gone."""


class Load(Enum):
    """What becomes of a request's remote blocks once local ones are allocated."""

    NONE = auto()
    NOTIFY = auto()  # nothing to read; the owner may free its blocks
    PULL = auto()
    STUCK = auto()  # promised to the scheduler, but never started: the request waits for ever


@dataclass
class Lease:
    """Blocks that a finished request's successor may read."""

    blocks: list[int]
    expires: float
    timer: Timer | None


class Connector:
    def __init__(
        self, config: Config, transfer: Transfer, pool: BlockPool, clock: Clock, metrics: Metrics,
        on_freed: Callable[[], None],
    ) -> None:  # fmt: skip
        self.settings = transfer
        self.engine_id = transfer.engine_id or str(uuid.uuid4())
        self.features = Features.of(config.knobs.vllm_version)
        wanted = transfer.bidirectional_kv_xfer and not config.knobs.one_way
        self.bidirectional = wanted and self.features.bidirectional
        self._config = config
        self._pool = pool
        self._clock = clock
        self._metrics = metrics
        self._on_freed = on_freed
        self._leases: dict[str, Lease] = {}
        self._heartbeats: dict[str, Timer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = SideChannelServer(self)
        self.port = config.side_channel_port
        self.remotes = Remotes(clock.now, self.identity, enforce_compat=transfer.enforce_handshake_compat)

    async def start(self) -> None:
        self.port = await self._server.start(self._config.side_channel_host, self._config.side_channel_port)

    async def stop(self) -> None:
        for timer in (*self._heartbeats.values(), *(x.timer for x in self._leases.values() if x.timer)):
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        self.remotes.close()
        await self._server.stop()

    @property
    def open_leases(self) -> int:
        return len(self._leases)

    def expiry(self, request_id: str) -> float:
        """When a lease ends, or 0 if there is none."""
        lease = self._leases.get(request_id)
        return lease.expires if lease is not None else 0.0

    # What the scheduler asks.

    def match(self, request: Request, local_tokens: int) -> int:
        """Tokens beyond the local ones that remote blocks can give."""
        params = request.kv_params or {}
        if params.get("do_remote_prefill"):
            return max(0, len(request.prompt) - local_tokens)
        if self._offers_decode_blocks(params) and self.features.bidirectional:
            count = min(params.get("remote_num_tokens") or 0, len(request.prompt)) - local_tokens
            if count >= max(1, self.settings.kv_recompute_threshold):
                return int(count)
        return 0

    def after_allocation(self, request: Request, external_tokens: int) -> Load:
        """Decide once what to do with the remote blocks; raises EngineDeadError where vLLM's assertion fails."""
        params = request.kv_params
        if not params:
            return Load.NONE
        from_decode = params.get("do_remote_decode") and self.bidirectional
        if not params.get("do_remote_prefill") and not from_decode:
            return Load.STUCK if external_tokens else Load.NONE
        located = all(key in params for key in _LOCATION)
        if not params.get("remote_block_ids") and external_tokens:
            raise EngineDeadError("assert num_external_tokens == 0")
        request.tracked = True
        params["do_remote_prefill"] = False
        if not params.get("remote_block_ids"):
            return Load.NONE
        if not located:
            log.warning("Got invalid KVTransferParams: %s. This request will not utilize KVTransfer", params)
            return Load.STUCK if external_tokens else Load.NONE
        return Load.PULL if external_tokens else Load.NOTIFY

    def finished(self, request: Request, finish_reason: str) -> dict[str, Any] | None:
        """Handle of a request that ended, if its blocks are kept for a reader (then they are not to be freed)."""
        params = request.kv_params
        if not params:
            return None
        serves_decode = bool(params.get("do_remote_decode"))
        if (not serves_decode and not self.bidirectional) or finish_reason not in ("stop", "length"):
            return None
        seconds = self.settings.kv_lease_duration if serves_decode else self.settings.decoder_kv_blocks_ttl
        expires = self._clock.now() + seconds
        self._keep(request, seconds)
        handle = {
            "do_remote_prefill": serves_decode,
            "do_remote_decode": not serves_decode,
            "remote_block_ids": [list(request.blocks)],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request.id,
            "remote_host": self._config.side_channel_host,
            "remote_port": self.port,
            "tp_size": self._config.tensor_parallel_size,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": request.computed_tokens,
            "transfer_mode": "pull",
        }
        if self.features.expiry_in_handle:
            handle["remote_blocks_expiry_time"] = None if serves_decode else expires
        if serves_decode and self.features.connector_version >= 14:
            handle["remote_prefill_cached_tokens"] = request.cached_tokens
        if self.features.connector_version >= 15:
            handle["remote_registration_generation"] = 0
        return handle

    # Reading from another engine.

    async def pull(self, request: Request, blocks: list[int]) -> None:
        """Fill `blocks` with the last remote ones; raises TransferError, or EngineDeadError if there are too few."""
        params = request.kv_params or {}
        remote_blocks = params["remote_block_ids"][0]
        try:
            remote = await self._remote(params)
            self._decline_if_expired(request, remote.clock_offset)
            if len(params["remote_block_ids"]) != 1:
                raise EngineDeadError("assert len(remote_block_ids) == len(local_block_ids)")
            if len(blocks) > len(remote_blocks):
                raise EngineDeadError("assert num_decode_blocks <= len(prefill_group)")
            began = self._clock.now()
            speed = self._config.knobs.speed
            line = speed.hand_over if params.get("do_remote_prefill") else speed.transfer
            await pause(self._clock, self.scaled(line(request.external_tokens)))
            raw = await remote.read(remote_blocks[-len(blocks) :])
        except TransferError as error:
            log.warning("KV transfer of %s failed: %s", request.id, error)
            if not isinstance(error, _ExpiredError):
                self._metrics.failed_transfers.inc()
                self.remotes.forget(params["remote_engine_id"])
            raise
        self._pool.load(blocks, raw)
        remote.tell({"op": "notify", "request": params["remote_request_id"]})
        wire, tokens = self._config.knobs.wire, request.external_tokens
        self._metrics.xfer_time.observe(wire.seconds(tokens) if wire else self._clock.now() - began)
        self._metrics.post_time.observe(0.0)
        self._metrics.xfer_bytes.observe(wire.size(tokens) if wire else len(raw))
        self._metrics.descriptors.observe(len(blocks))

    async def _remote(self, params: dict[str, Any]) -> Remote:
        return await self.remotes.get(params["remote_engine_id"], params["remote_host"], params["remote_port"])

    def notify_owner(self, params: dict[str, Any] | None, request_id: str) -> None:
        """Tell the owner of a request's remote blocks, in the background, that they may be freed."""
        if not params or not all(key in params for key in _LOCATION):
            return

        async def send() -> None:
            try:
                remote = await self.remotes.get(
                    params["remote_engine_id"], params["remote_host"], params["remote_port"]
                )
                remote.tell({"op": "notify", "request": params["remote_request_id"]})
            except TransferError as error:
                log.warning("notification of %s failed: %s", request_id, error)
                self._metrics.failed_transfers.inc()
                self._metrics.failed_notifications.inc()

        self.spawn(send())

    def start_heartbeat(self, request: Request) -> None:
        """Keep a prefill engine's lease alive from arrival until the blocks are here."""
        params = request.kv_params or {}
        if not params.get("do_remote_prefill") or not all(key in params for key in _LOCATION):
            return

        async def tell() -> None:
            try:
                remote = await self.remotes.get(
                    params["remote_engine_id"], params["remote_host"], params["remote_port"]
                )
                remote.tell({"op": "heartbeat", "requests": [params["remote_request_id"]]})
            except TransferError as error:
                log.warning("heartbeat for %s failed: %s", request.id, error)

        def beat() -> None:
            self.spawn(tell())
            self._heartbeats[request.id] = self._clock.call_later(self.settings.kv_lease_duration // 6, beat)

        self._heartbeats[request.id] = self._clock.call_later(self.settings.kv_lease_duration // 6, beat)

    def stop_heartbeat(self, request: Request) -> None:
        timer = self._heartbeats.pop(request.id, None)
        if timer is not None:
            timer.cancel()

    def spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it has it, too; nobody may

    def scaled(self, seconds: float) -> float:
        return seconds * self._config.knobs.time_scale

    # Being read from (the side channel's Owner).

    def identity(self) -> dict[str, Any]:
        config = self._config
        factors = (
            config.knobs.vllm_version, self.features.connector_version, config.model, config.dtype,
            config.kv_cache_dtype, "pull",
        )  # fmt: skip
        return {
            "engine_id": self.engine_id,
            "compatibility_hash": sha256(orjson.dumps(factors)).hexdigest(),
            "block_size": config.block_size,
            "clock": self._clock.now(),
        }

    def export_blocks(self, blocks: list[int]) -> bytes:
        return self._pool.export(blocks)

    def notified(self, request_id: str) -> None:
        lease = self._leases.get(request_id)
        if lease is None or lease.timer is None:
            log.error("Potentially invalid KV blocks for unrecognized request %s were retrieved", request_id)
            self._metrics.late_notifications.inc()
            return
        self._release(request_id)

    def heartbeat(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            lease = self._leases.get(request_id)
            if lease is not None and lease.timer is not None:
                until = self._clock.now() + self.settings.kv_lease_duration * 2 // 3
                self._set_expiry(request_id, lease, max(lease.expires, until))

    def _keep(self, request: Request, seconds: float) -> None:
        lease = Lease(list(request.blocks), self._clock.now() + seconds, None)
        self._leases[request.id] = lease
        # vLLM forgets to watch requests that asked for neither direction: their blocks are never freed.
        if request.tracked or (request.kv_params or {}).get("do_remote_decode"):
            self._set_expiry(request.id, lease, lease.expires)

    def _set_expiry(self, request_id: str, lease: Lease, expires: float) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
        lease.expires = expires
        lease.timer = self._clock.call_later(expires - self._clock.now(), lambda: self._expire(request_id))

    def _expire(self, request_id: str) -> None:
        log.warning("Releasing expired KV blocks for request %s", request_id)
        self._metrics.expired.inc()
        self._release(request_id)

    def _release(self, request_id: str) -> None:
        lease = self._leases.pop(request_id)
        if lease.timer is not None:
            lease.timer.cancel()
        self._pool.free(lease.blocks)
        self._on_freed()

    def _offers_decode_blocks(self, params: dict[str, Any]) -> bool:
        offered = params.get("do_remote_decode") and params.get("remote_block_ids")
        return bool(offered) and all(key in params for key in _LOCATION)

    def _decline_if_expired(self, request: Request, clock_offset: float) -> None:
        expiry = (request.kv_params or {}).get("remote_blocks_expiry_time")
        if not self.bidirectional or expiry is None:
            return
        if self._clock.now() + EXPIRY_MARGIN_S >= expiry - clock_offset:
            self._metrics.expired.inc()
            raise _ExpiredError("Declining expired remote read")


class _ExpiredError(TransferError):
    pass
