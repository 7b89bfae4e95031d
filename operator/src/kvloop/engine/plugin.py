"""The plugin that a stock vLLM loads by the entry point ``vllm.general_plugins``: hooks, and what it tells on /metrics.

Three places are hooked, all by public names that are the same from vLLM 0.21 on:

- the front end's client of the engine core, through which everything goes that enters or leaves the core, whatever API
  it came by: `Gate` checks the handles that go in and signs those that come out;
- the three services whose streams carry no handle before vLLM 0.33: `Tail` adds it;
- the engine core's connector, which has a request wait for KV: not for a second time, see `_read_once`.

If anything is not as expected neither of the first two is hooked: the engine works as if there was no plugin, says so
once in its log, and reports ``active="0"``, upon which the router gives it no handles.
"""

from __future__ import annotations

import inspect
import logging
import os
import uuid
from functools import cache, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from kvloop import __version__
from kvloop.engine.gate import KV, OUTPUT_FIELDS, REQUEST_FIELDS, Gate
from kvloop.engine.spent import Spent
from kvloop.engine.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from kvloop.engine.guard import Report

log = logging.getLogger("vllm.kvloop")

_BOOT_ID = "KVLOOP_BOOT_ID"
_SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # vLLM makes one if it starts several API server processes
_CORE_METHODS = {"add_request_async": ["request"], "get_output_async": [], "abort_requests_async": ["request_ids"]}
_FACTORY = ("vllm.distributed.kv_transfer.kv_connector.factory", "KVConnectorFactory")
_CONNECTORS = {"NixlConnector", "NixlPullConnector"}  # names of one class, before and since pushing came


class _Service(NamedTuple):
    """A service whose method answers with an asynchronous generator of server-sent events if asked to stream."""

    module: str
    name: str
    method: str
    chunk: str
    """Name in the module's sibling ``protocol``; has a field for the handle where vLLM sends it itself."""


_SERVICES = (
    _Service(
        "vllm.entrypoints.openai.chat_completion", "OpenAIServingChat", "create_chat_completion",
        "ChatCompletionStreamResponse",
    ),
    _Service(
        "vllm.entrypoints.openai.completion", "OpenAIServingCompletion", "create_completion",
        "CompletionStreamResponse",
    ),
    _Service("vllm.entrypoints.anthropic", "AnthropicServingMessages", "create_messages", "AnthropicStreamEvent"),
)  # fmt: skip


class HookError(Exception):
    """Something to hook is missing or has another shape than in the versions known."""


def register() -> None:
    """Called by vLLM in each of its processes, before it builds anything."""
    os.environ.setdefault(_BOOT_ID, uuid.uuid4().hex)  # inherited: one for all processes of this start
    try:
        engine, factory = _find("vllm.v1.engine.async_llm", "AsyncLLM"), _find(*_FACTORY)
        _hook_factory(factory)
    except HookError as error:
        _report_inactive(error)
        return
    init = engine.__init__
    if hasattr(init, "__wrapped__"):
        return

    @wraps(init)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _start(self)

    engine.__init__ = initialise


def _start(llm: Any) -> None:
    """Hook into a front end that has just been built. Never raises."""
    try:
        config = getattr(llm, "vllm_config", None)
        try:
            _hook(llm)
        except HookError as error:
            _report_inactive(error, config)
        else:
            _export(config, active=True)
            log.info("kvloop %s is active", __version__)
    except Exception:  # whatever it is, the engine must start
        log.exception("kvloop %s could not start", __version__)


def _hook(llm: Any) -> None:
    """All hooks, or none; raises HookError."""
    core = getattr(llm, "engine_core", None)
    for name, names in _CORE_METHODS.items():
        _demand(core, name, names)
    for name, fields in (("EngineCoreRequest", REQUEST_FIELDS), ("EngineCoreOutput", OUTPUT_FIELDS)):
        if missing := fields - set(getattr(_find("vllm.v1.engine", name), "__struct_fields__", ())):
            raise HookError(f"vllm.v1.engine.{name} has no {', '.join(sorted(missing))}")
    streams = []
    for service in _SERVICES:
        owner = _find(f"{service.module}.serving", service.name)
        _demand(owner, service.method, ["self", "request", "raw_request"])
        chunk = _find(f"{service.module}.protocol", service.chunk)
        if KV not in chunk.model_fields:
            streams.append((owner, service.method))
    config = llm.vllm_config
    spent = Spent(os.environ.get(_SHARED_FOLDER))
    gate = Gate(config.cache_config.block_size, spent, _counters(), whole=_keeps_all(config))
    _hook_core(core, gate)
    for owner, method in streams:
        _hook_service(owner, method)


def _keeps_all(config: Any) -> bool:
    """Whether an engine keeps, and hands over, the KV of every token of a sequence."""
    model = config.model_config
    return (
        model.get_sliding_window() is None
        and not model.is_attention_free
        and getattr(config, "num_prefill_lookahead_tokens", 1) <= 1  # else prefill leaves the last tokens to decode
    )


def _hook_core(core: Any, gate: Gate) -> None:
    add, get, abort = (getattr(core, name) for name in _CORE_METHODS)

    async def add_request_async(request: Any) -> None:
        gate.admit(request)
        try:
            await add(request)
        except BaseException:
            gate.forget([request.request_id])
            raise

    async def get_output_async() -> Any:
        outputs = await get()
        gate.deliver(outputs.outputs)
        return outputs

    async def abort_requests_async(request_ids: list[str]) -> None:
        gate.forget(request_ids)
        await abort(request_ids)

    core.add_request_async, core.get_output_async = add_request_async, get_output_async
    core.abort_requests_async = abort_requests_async


def _hook_service(owner: Any, method: str) -> None:
    original = getattr(owner, method)
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    async def create(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        answer = await original(self, request, *args, **kwargs)
        # Subclasses turn the stream into another API's: the Messages API is built on the chat service.
        if type(self) is owner and getattr(request, KV, None) and hasattr(answer, "__anext__"):
            return Tail(answer)
        return answer

    setattr(owner, method, create)


def _hook_factory(factory: Any) -> None:
    create = getattr(factory, "create_connector", None)
    if hasattr(create, "__wrapped__"):
        return
    if not inspect.ismethod(create):
        raise HookError(f"{factory.__name__}.create_connector is not a class method")

    @wraps(create)
    def create_connector(*args: Any, **kwargs: Any) -> Any:
        connector = create(*args, **kwargs)
        if type(connector).__name__ in _CONNECTORS:
            _read_once(connector)
        return connector

    factory.create_connector = create_connector


def _read_once(connector: Any) -> None:
    """Have a request that was preempted after its read computed.

    vLLM reads for a request only once, but up to 0.32 has one that it preempted wait for its read again, for ever, and
    keeps its blocks even if it is aborted.
    """
    match = connector.get_num_new_matched_tokens

    def get_num_new_matched_tokens(request: Any, *args: Any, **kwargs: Any) -> Any:
        return (0, False) if getattr(request, "num_preemptions", 0) else match(request, *args, **kwargs)

    connector.get_num_new_matched_tokens = get_num_new_matched_tokens


def _find(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise HookError(f"{module}.{name} cannot be found: {error}") from error


def _demand(owner: Any, name: str, parameters: list[str]) -> None:
    method = getattr(owner, name, None)
    where = f"{owner.__name__ if isinstance(owner, type) else type(owner).__name__}.{name}"
    if not inspect.iscoroutinefunction(method):
        raise HookError(f"{where} is not a coroutine function")
    found = list(inspect.signature(method).parameters)
    if found != parameters:
        raise HookError(f"{where} takes ({', '.join(found)}), not ({', '.join(parameters)})")


def _report_inactive(error: HookError, config: Any = None) -> None:
    log.error("kvloop %s does not fit this vLLM and stays out of it: %s. No KV will be reused.", __version__, error)
    _export(config, active=False)


def _export(config: Any, *, active: bool) -> None:
    """What the router asks of an engine; the same series from each API server process."""
    labels = {
        "plugin_version": __version__,
        "vllm_version": getattr(import_module("vllm"), "__version__", ""),
        "role": getattr(getattr(config, "kv_transfer_config", None), "kv_role", None) or "",
        "active": "1" if active else "0",
        "block_size": str(getattr(getattr(config, "cache_config", None), "block_size", "")),
        "boot_id": os.environ[_BOOT_ID],
    }
    _info(tuple(labels)).labels(**labels).set(1)


@cache
def _info(labels: tuple[str, ...]) -> Any:
    text = "kvloop's engine plugin; boot_id changes at each start."
    return _prometheus().Gauge("kvloop_engine_info", text, labels, multiprocess_mode="max")


@cache
def _counters() -> Callable[[Report], None]:
    counter = _prometheus().Counter
    handles = counter("kvloop_guard_handles", "Handles that offered KV, by what the guard made of them.", ["reason"])
    offered = counter("kvloop_guard_offered_tokens", "Tokens that handles offered.")
    verified = counter("kvloop_guard_verified_tokens", "Offered tokens that the prompt provably shares.")

    def observe(report: Report) -> None:
        handles.labels(report.reason).inc()
        offered.inc(report.offered)
        verified.inc(report.verified)

    return observe


def _prometheus() -> ModuleType:
    """Imported late: it decides at its first import whether it counts across processes, which vLLM prepares first."""
    return import_module("prometheus_client")
