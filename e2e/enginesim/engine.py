"""The engine core: admission, prefix cache, remote blocks, prefill, decode, and what stays behind."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from e2e.enginesim import content, tokenizer
from e2e.enginesim.blocks import BlockPool
from e2e.enginesim.clock import pause
from e2e.enginesim.metrics import Metrics
from e2e.enginesim.model import Sampler
from e2e.enginesim.request import EngineError, Request, Step
from e2e.enginesim.sidechannel import TransferError
from e2e.enginesim.transfer import Connector, EngineDeadError, Load

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from e2e.enginesim.clock import Clock
    from e2e.enginesim.config import Config


class Engine:
    """`guarded`: kvloop's plugin is in the engine core, too."""

    def __init__(self, config: Config, clock: Clock, *, guarded: bool) -> None:
        self.config = config
        self.guarded = guarded
        self.clock = clock
        self.metrics = Metrics(config)
        self.pool = BlockPool(config.num_blocks, config.block_size, prefix_caching=config.prefix_caching)
        self.connector: Connector | None = None
        if config.transfer is not None:
            self.connector = Connector(config, config.transfer, self.pool, clock, self.metrics, self._changed)
        self.death: str | None = None
        self._queue: deque[Request] = deque()
        self._running: set[Request] = set()
        self._fetching: set[Request] = set()
        self._change = asyncio.Event()
        self._gpu = asyncio.Lock()
        self._expose_state()

    async def start(self) -> None:
        if self.connector is not None:
            await self.connector.start()

    async def stop(self) -> None:
        if self.connector is not None:
            await self.connector.stop()

    @property
    def busy(self) -> bool:
        """Whether requests or leases are left; both count as work at shutdown, as in vLLM."""
        return bool(self._queue or self._running or (self.connector and self.connector.open_leases))

    @property
    def load(self) -> int:
        return len(self._queue) + len(self._running)

    async def generate(self, request: Request) -> AsyncGenerator[Step, None]:
        """Run a request; closing the iterator aborts it. Raises EngineError if it fails."""
        if self.death is not None:
            raise EngineError("EngineCore encountered an issue. See stack trace (above) for the root cause.")
        request.arrival = self.clock.now()
        finish = "abort"
        try:
            await self._prepare(request)
            async for step in self._decode(request):
                finish = step.finish_reason or finish
                yield self._finish(request, step) if step.finish_reason is not None else step
        except EngineDeadError as error:
            finish, self.death = "error", str(error)
            self._changed()
            raise EngineError(str(error)) from error
        except TransferError as error:
            finish = "error"
            raise EngineError(str(error)) from error
        finally:
            self._leave(request, finish)

    def reset_prefix_cache(self, *, running: bool) -> None:
        """Forget all cached prefixes, unless blocks are in use; `running` requests lose theirs if they are to."""
        for request in self._running if running else ():
            request.evicted = True
        self.pool.reset_prefix_cache()

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition on the queue, the running requests or the leases; raises EngineError at the end."""
        while not holds():
            if self.death is not None:
                raise EngineError(self.death)
            self._change.clear()
            await self._change.wait()

    async def _prepare(self, request: Request) -> None:
        """Everything up to the moment at which the first token can be sampled."""
        connector = self.connector
        if connector is not None:
            connector.start_heartbeat(request)
        await self._admit(request)
        self.metrics.queue_time.observe(self.clock.now() - request.arrival)
        if connector is not None:
            request.external_tokens = connector.match(request, request.local_tokens)
            self._count_promise(request)
            load = connector.after_allocation(request, request.external_tokens)
            if load is Load.NOTIFY:
                connector.notify_owner(request.kv_params, request.id)
            elif load is not Load.NONE:
                await self._fetch(connector, request, load)
            connector.stop_heartbeat(request)
        await self._prefill(request)
        self._count_prompt(request)

    async def _admit(self, request: Request, *, first: bool = False) -> None:
        """Wait for a place in the batch and for blocks; first come, first served, preempted ones before all."""
        tokens = np.array(request.prompt + request.output, dtype=np.uint32)
        request.expected = content.cold(tokens, content.number_of(self.config.model, request.lora))
        request.realm = content.number_of(request.cache_salt) if request.cache_salt else 0
        (self._queue.appendleft if first else self._queue.append)(request)
        try:
            await self.wait_until(lambda: self._queue[0] is request and self._allocate(request))
            self._running.add(request)
        finally:
            self._queue.remove(request)
            self._changed()

    def _allocate(self, request: Request) -> bool:
        size, total = self.config.block_size, len(request.expected)
        # The last token is never taken from the cache: something must be computed to sample from.
        hits = self.pool.lookup(self._keys(request, total - 1))
        new = self.pool.blocks_for(total) - len(hits)
        if len(self._running) >= self.config.max_num_seqs or not self.pool.allocatable(new, hits):
            return False
        request.local_tokens, request.external_tokens = len(hits) * size, 0
        self.pool.hold(hits)
        request.blocks = hits + self.pool.allocate(new)
        return True

    async def _fetch(self, connector: Connector, request: Request, load: Load) -> None:
        """Read remote blocks into the request's own, or apply ``kv_load_failure_policy``."""
        size = self.config.block_size
        first, end = request.local_tokens // size, self.pool.blocks_for(request.local_tokens + request.external_tokens)
        self._fetching.add(request)
        try:
            if load is Load.STUCK:
                await self._hang(request)
            request.pull = connector.spawn(connector.pull(request, request.blocks[first:end]))
            await asyncio.shield(request.pull)
        except TransferError:
            if connector.settings.kv_load_failure_policy == "fail":
                raise
            if (request.kv_params or {}).get("do_remote_decode"):
                await self._hang(request)  # vLLM 0.32 matches the remote blocks again, but never asks for them again
            request.external_tokens = 0
        finally:
            self._fetching.discard(request)
            if request.pull is not None and request.pull.done():
                request.pull = None
        self._remember(request, request.local_tokens + request.external_tokens)

    async def _hang(self, request: Request) -> None:
        request.leaked = True
        await self.wait_until(lambda: False)

    async def _prefill(self, request: Request) -> None:
        """Compute the rest of the sequence from what the blocks hold."""
        total = len(request.expected)
        computed = min(request.local_tokens + request.external_tokens, total - 1)
        request.cached_tokens = computed
        began = self.clock.now()
        async with self._gpu:
            seconds = self.config.knobs.speed.prefill(total - computed, computed)
            await pause(self.clock, seconds * self.config.knobs.time_scale)
        read = self.pool.read(request.blocks, computed)
        request.taint = content.taint(read, request.expected[:computed])
        new = request.expected[computed:] + np.uint64(request.taint)
        self.pool.write(request.blocks, computed, new)
        request.fold = content.fold(np.concatenate((read, new)))
        request.last_slot = int(request.expected[-1])
        self._remember(request, total)
        self.metrics.prefill_time.observe(self.clock.now() - began)

    async def _decode(self, request: Request) -> AsyncGenerator[Step, None]:
        sampling, knobs = request.sampling, self.config.knobs
        sampler = Sampler(knobs, sampling.style, not sampling.ignore_eos, sampling.min_tokens)
        gap = knobs.speed.decode(1) * knobs.time_scale
        while self.death is None:
            token = sampler.next(request.fold, (request.output or request.prompt)[-1])
            request.output.append(token)
            now = self.clock.now()
            if len(request.output) == 1:
                request.first_token_at = now
                self.metrics.first_token.observe(now - request.arrival)
            reason, stop = self._why_stop(request, token)
            yield Step([token], reason, stop)
            if reason is not None:
                return
            await self._append(request, token)
            # Without a pause, too, each token is on its way before the next one is thought of.
            await (pause(self.clock, gap) if gap > 0 else asyncio.sleep(0))
        raise EngineError(self.death)

    def _why_stop(self, request: Request, token: int) -> tuple[str | None, int | None]:
        sampling = request.sampling
        if len(request.output) >= sampling.min_tokens:
            if token == tokenizer.EOS and not sampling.ignore_eos:
                return "stop", None
            if token in sampling.stop_token_ids:
                return "stop", token
        if len(request.output) >= sampling.max_tokens or request.computed_tokens + 1 >= self.config.max_model_len:
            return "length", None
        return None, None

    async def _append(self, request: Request, token: int) -> None:
        """Compute the KV of a token that has been sampled."""
        if request.evicted:
            await self._preempt(request)
            return
        position = len(request.prompt) + len(request.output) - 1
        index, offset = divmod(position, self.config.block_size)
        if index == len(request.blocks):
            await self.wait_until(lambda: self.pool.allocatable(1, []) or self._is_youngest(request))
            if not self.pool.allocatable(1, []):
                await self._preempt(request)
                return
            request.blocks += self.pool.allocate(1)
        request.last_slot = content.extend(request.last_slot, token, position)
        held = (request.last_slot + request.taint) & content.MASK
        self.pool.write_one(request.blocks[index], offset, held)
        request.fold = (request.fold + held * content.weight(position)) & content.MASK
        if offset == self.config.block_size - 1:
            self.pool.cache(request.blocks[index], request.last_slot ^ request.realm)

    def _is_youngest(self, request: Request) -> bool:
        return all(request.arrival >= other.arrival for other in self._running)

    async def _preempt(self, request: Request) -> None:
        """Give all blocks to the older requests; compute everything again once there is room."""
        self.metrics.preemptions.inc()
        self._running.discard(request)
        self._free(request)
        request.evicted = False
        await self._admit(request, first=True)
        if self.connector is not None and not self.guarded and self.connector.match(request, request.local_tokens):
            await self._hang(request)  # as in `_fetch`
        await self._prefill(request)

    def _remember(self, request: Request, tokens: int) -> None:
        """Enter the full blocks among the first `tokens` into the prefix cache, under the request's own tokens."""
        for block, key in zip(request.blocks, self._keys(request, tokens), strict=False):
            self.pool.cache(block, key)

    def _keys(self, request: Request, tokens: int) -> list[int]:
        """Prefix-cache keys of the full blocks among the first `tokens`; a cache salt keeps to itself."""
        if not self.config.prefix_caching:
            return []
        size = self.config.block_size
        keys: list[int] = (request.expected[size - 1 :: size][: tokens // size] ^ np.uint64(request.realm)).tolist()
        return keys

    def _finish(self, request: Request, step: Step) -> Step:
        self._count_output(request)
        handle = None
        if self.connector is not None and step.finish_reason is not None:
            handle = self.connector.finished(request, step.finish_reason)
            if handle is not None:
                request.blocks = []  # the lease has them now
        return Step(step.tokens, step.finish_reason, step.stop_reason, handle)

    def _leave(self, request: Request, finish: str) -> None:
        connector = self.connector
        if connector is not None:
            connector.stop_heartbeat(request)
            if not request.blocks and finish == "abort" and (request.kv_params or {}).get("do_remote_prefill"):
                # Never scheduled: the prefill engine must not wait for its lease.
                connector.notify_owner(request.kv_params, request.id)
        self._running.discard(request)
        self.metrics.success[finish].inc()
        if request.pull is not None:
            # The transfer cannot be called back; it goes on writing into these blocks.
            request.pull.add_done_callback(lambda _: self._free(request))
        elif not request.leaked:
            self._free(request)

    def _free(self, request: Request) -> None:
        self.pool.free(request.blocks)
        request.blocks = []
        self._changed()

    def _changed(self) -> None:
        self._change.set()

    def _count_promise(self, request: Request) -> None:
        """What the connector promised; counted before the read, so also if that fails, as in vLLM."""
        self.metrics.external_queries.inc(len(request.prompt) - request.local_tokens)
        self.metrics.external_hits.inc(request.external_tokens)
        self.metrics.cached_by_source["p2p"].inc(request.external_tokens)

    def _count_prompt(self, request: Request) -> None:
        total, computed, external = len(request.prompt), request.cached_tokens, request.external_tokens
        recomputed = 1 if computed + 1 == total else 0
        metrics = self.metrics
        metrics.prompt_tokens.inc(total)
        metrics.prompt_cached.inc(computed)
        metrics.request_computed.observe(total - computed)
        metrics.prompt_by_source["local_compute"].inc(total - computed)
        metrics.prompt_by_source["external_kv_transfer"].inc(external)
        metrics.prompt_by_source["local_cache_hit"].inc(max(0, computed + recomputed - external))
        metrics.cached_by_source["device"].inc(request.local_tokens)
        metrics.prefix_queries.inc(total)
        metrics.prefix_hits.inc(request.local_tokens)

    def _count_output(self, request: Request) -> None:
        now, count = self.clock.now(), len(request.output)
        self.metrics.generation_tokens.inc(count)
        self.metrics.request_prompt.observe(len(request.prompt))
        self.metrics.request_generation.observe(count)
        self.metrics.latency.observe(now - request.arrival)
        self.metrics.decode_time.observe(now - request.first_token_at)
        if count > 1:
            self.metrics.token_gap.observe((now - request.first_token_at) / (count - 1))

    def _expose_state(self) -> None:
        metrics = self.metrics
        metrics.running.set_function(lambda: len(self._running) - len(self._fetching))
        metrics.waiting.set_function(lambda: len(self._queue) + len(self._fetching))
        metrics.waiting_for["capacity"].set_function(lambda: len(self._queue))
        metrics.waiting_for["deferred"].set_function(lambda: len(self._fetching))
        metrics.kv_usage.set_function(lambda: self.pool.usage)
