"""The plugin on modules of vLLM's shape: hooks all or none, respects who subclasses, tells what it is."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from kvloop import __version__
from kvloop.engine import plugin
from kvloop.engine.gate import OUTPUT_FIELDS, REQUEST_FIELDS
from kvloop.engine.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Iterator

CHAT, COMPLETION = "vllm.entrypoints.openai.chat_completion", "vllm.entrypoints.openai.completion"
ANTHROPIC = "vllm.entrypoints.anthropic"
FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"


class Core:
    """The client of an engine core."""

    def __init__(self) -> None:
        self.added: list[Any] = []
        self.aborted: list[str] = []
        self.dead = False

    async def add_request_async(self, request: Any) -> None:
        if self.dead:
            raise RuntimeError("EngineDeadError")
        self.added.append(request)

    async def get_output_async(self) -> Any:
        output = {"request_id": "r", "new_token_ids": [7], "finish_reason": "length"}
        return SimpleNamespace(outputs=[SimpleNamespace(**output, kv_transfer_params=handle(33))])

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self.aborted += request_ids


def handle(tokens: int) -> dict[str, Any]:
    return {"do_remote_decode": True, "remote_block_ids": [[1, 2]], "remote_num_tokens": tokens}


def request() -> SimpleNamespace:
    fields = {**dict.fromkeys(REQUEST_FIELDS), "request_id": "r", "prompt_token_ids": list(range(33))}
    extra = {"kv_transfer_params": {"do_remote_decode": True}}
    return SimpleNamespace(**{**fields, "sampling_params": SimpleNamespace(extra_args=extra)})


class NixlConnector:
    """Says of every request that so many tokens beyond those computed are elsewhere."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return request.prompt - num_computed_tokens, True


class OtherConnector(NixlConnector):
    pass


class Vllm:
    """The parts of vLLM that the plugin looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.config = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=32),
            kv_transfer_config=SimpleNamespace(kv_role="kv_consumer"),
            model_config=SimpleNamespace(get_sliding_window=lambda: None, is_attention_free=False),
        )
        config = self.config

        class AsyncLLM:
            def __init__(self, core: Any) -> None:
                self.engine_core, self.vllm_config = core, config

        class Chat:
            async def create_chat_completion(self, request: Any, raw_request: Any = None) -> Any:
                return events() if request.stream else {"whole": True}

        class Completion:
            async def create_completion(self, request: Any, raw_request: Any = None) -> Any:
                return events()

        class Messages(Chat):
            async def create_messages(self, request: Any, raw_request: Any = None) -> Any:
                self.inner = await self.create_chat_completion(request, raw_request)
                return events()

        class Factory:
            @classmethod
            def create_connector(cls, connector: type[NixlConnector], role: str) -> NixlConnector:
                assert role == "scheduler"
                return connector()

        async def events() -> Any:
            yield "data: {}\n\n"

        self.llm, self.chat, self.completion, self.messages = AsyncLLM, Chat, Completion, Messages
        self.factory = Factory
        self.module("vllm", __version__="0.32.0")
        self.module(FACTORY, KVConnectorFactory=Factory)
        self.module("vllm.v1.engine.async_llm", AsyncLLM=AsyncLLM)
        self.module(
            "vllm.v1.engine",
            EngineCoreRequest=SimpleNamespace(__struct_fields__=(*REQUEST_FIELDS, "priority")),
            EngineCoreOutput=SimpleNamespace(__struct_fields__=(*OUTPUT_FIELDS, "events")),
        )
        self.module(CHAT + ".serving", OpenAIServingChat=Chat)
        self.module(COMPLETION + ".serving", OpenAIServingCompletion=Completion)
        self.module(ANTHROPIC + ".serving", AnthropicServingMessages=Messages)
        chunk = SimpleNamespace(model_fields={"id": None})
        self.module(CHAT + ".protocol", ChatCompletionStreamResponse=chunk)
        self.module(COMPLETION + ".protocol", CompletionStreamResponse=chunk)
        self.module(ANTHROPIC + ".protocol", AnthropicStreamEvent=chunk)

    def module(self, name: str, **content: Any) -> None:
        made = ModuleType(name)
        vars(made).update(content)
        self._monkeypatch.setitem(sys.modules, name, made)

    def start(self, core: Any = None) -> Any:
        """A front end, built as ``vllm serve`` builds it: the plugin first."""
        plugin.register()
        return self.llm(Core() if core is None else core)


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    made = {name: partial(getattr(prometheus_client, name), registry=registry) for name in ("Gauge", "Counter")}
    monkeypatch.setattr(plugin, "_prometheus", lambda: SimpleNamespace(**made))
    monkeypatch.setenv("KVLOOP_BOOT_ID", "")  # undone at the end even if it was not there, as what register() sets
    monkeypatch.delenv("KVLOOP_BOOT_ID")
    yield registry
    plugin._info.cache_clear()
    plugin._counters.cache_clear()


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch, metrics: CollectorRegistry) -> Vllm:
    return Vllm(monkeypatch)


def info(registry: CollectorRegistry) -> dict[str, str]:
    """Labels of the one ``kvloop_engine_info``."""
    (metric,) = [m for m in registry.collect() if m.name == "kvloop_engine_info"]
    (sample,) = metric.samples
    assert sample.value == 1
    return sample.labels


async def test_what_enters_and_leaves_the_core_goes_through_the_gate(vllm: Vllm, metrics: CollectorRegistry) -> None:
    core = Core()
    llm = vllm.start(core)
    await llm.engine_core.add_request_async(request())
    assert len(core.added) == 1
    (output,) = (await llm.engine_core.get_output_async()).outputs
    assert output.kv_transfer_params["guard"]["n"] == 33
    labels = info(metrics)
    assert labels == {
        "plugin_version": __version__, "vllm_version": "0.32.0", "role": "kv_consumer", "active": "1",
        "block_size": "32", "boot_id": os.environ["KVLOOP_BOOT_ID"],
    }  # fmt: skip
    assert len(labels["boot_id"]) == 32


async def test_what_is_aborted_or_not_taken_is_forgotten(vllm: Vllm) -> None:
    core = Core()
    llm = vllm.start(core)
    await llm.engine_core.add_request_async(request())
    await llm.engine_core.abort_requests_async(["r"])
    assert core.aborted == ["r"]
    core.dead = True
    with pytest.raises(RuntimeError):
        await llm.engine_core.add_request_async(request())
    (output,) = (await llm.engine_core.get_output_async()).outputs
    assert "guard" not in output.kv_transfer_params


async def test_reports_are_counted(vllm: Vllm, metrics: CollectorRegistry) -> None:
    llm = vllm.start()
    made = request()
    made.sampling_params.extra_args["kv_transfer_params"] = {**handle(33), "remote_host": "a b"}
    await llm.engine_core.add_request_async(made)
    assert metrics.get_sample_value("kvloop_guard_handles_total", {"reason": "malformed"}) == 1
    assert metrics.get_sample_value("kvloop_guard_offered_tokens_total") == 33
    assert metrics.get_sample_value("kvloop_guard_verified_tokens_total") == 0


@pytest.mark.parametrize(
    ("model", "config", "checked"),
    [
        ({}, {}, True),
        ({"get_sliding_window": lambda: 4096}, {}, False),
        ({"is_attention_free": True}, {}, False),
        ({}, {"num_prefill_lookahead_tokens": 1}, True),
        ({}, {"num_prefill_lookahead_tokens": 2}, False),
    ],
)
async def test_blocks_are_counted_where_they_hold_all_tokens(
    vllm: Vllm, metrics: CollectorRegistry, model: dict[str, Any], config: dict[str, Any], checked: bool
) -> None:
    vars(vllm.config.model_config).update(model)
    vars(vllm.config).update(config)
    llm = vllm.start()
    made = request()
    few = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1]]}
    where = {"remote_engine_id": "e", "remote_request_id": "r", "remote_host": "10.0.0.1", "remote_port": 5600}
    made.sampling_params.extra_args["kv_transfer_params"] = {**handle(33), **few, **where}
    await llm.engine_core.add_request_async(made)
    counted = metrics.get_sample_value("kvloop_guard_handles_total", {"reason": "block_count"})
    assert counted == (1 if checked else None)


async def test_streams_of_requests_with_parameters_get_a_tail(vllm: Vllm) -> None:
    vllm.start()
    with_params = SimpleNamespace(stream=True, kv_transfer_params={"do_remote_decode": True})
    without = SimpleNamespace(stream=True, kv_transfer_params=None)
    assert isinstance(await vllm.chat().create_chat_completion(with_params, None), Tail)
    assert isinstance(await vllm.completion().create_completion(with_params), Tail)
    assert not isinstance(await vllm.chat().create_chat_completion(without), Tail)
    whole = SimpleNamespace(stream=False, kv_transfer_params={"do_remote_decode": True})
    assert await vllm.chat().create_chat_completion(whole) == {"whole": True}


async def test_the_messages_api_gets_one_tail_and_the_chat_stream_below_it_none(vllm: Vllm) -> None:
    vllm.start()
    service = vllm.messages()
    outer = await service.create_messages(SimpleNamespace(stream=True, kv_transfer_params={"do_remote_decode": True}))
    assert isinstance(outer, Tail)
    assert not isinstance(service.inner, Tail)


async def test_no_tail_where_vllm_sends_the_handle_itself(vllm: Vllm) -> None:
    sends = SimpleNamespace(model_fields={"id": None, "kv_transfer_params": None})
    vllm.module(CHAT + ".protocol", ChatCompletionStreamResponse=sends)
    vllm.start()
    params = SimpleNamespace(stream=True, kv_transfer_params={"do_remote_decode": True})
    assert not isinstance(await vllm.chat().create_chat_completion(params), Tail)
    assert isinstance(await vllm.completion().create_completion(params), Tail)


@pytest.mark.parametrize(
    ("connector", "preemptions", "elsewhere"),
    [
        (NixlConnector, 0, (290, True)),
        (NixlConnector, 1, (0, False)),
        (OtherConnector, 1, (290, True)),
    ],
)
def test_what_was_preempted_waits_for_no_second_read(
    vllm: Vllm, connector: type[NixlConnector], preemptions: int, elsewhere: tuple[int, bool]
) -> None:
    vllm.start()
    made = vllm.factory.create_connector(connector, role="scheduler")
    request = SimpleNamespace(prompt=300, num_preemptions=preemptions)
    assert made.get_num_new_matched_tokens(request, 10) == elsewhere


def test_loading_it_twice_hooks_once(vllm: Vllm) -> None:
    def hooked() -> list[Any]:
        return [vllm.llm.__init__, vllm.chat.create_chat_completion, vllm.factory.create_connector]

    vllm.start()
    first = hooked()
    vllm.start()
    assert all(now is before for now, before in zip(hooked(), first, strict=True))


class NoAbort(Core):
    abort_requests_async = None  # type: ignore[assignment]  # what is missing


class OtherSignature(Core):
    async def add_request_async(self, request: Any, priority: int = 0) -> None:
        pass


class NotAsynchronous(Core):
    def get_output_async(self) -> Any:
        return asyncio.sleep(0)


@pytest.mark.parametrize(
    ("core", "message"),
    [
        (NoAbort(), "NoAbort.abort_requests_async is not a coroutine function"),
        (OtherSignature(), "OtherSignature.add_request_async takes (request, priority), not (request)"),
        (NotAsynchronous(), "NotAsynchronous.get_output_async is not a coroutine function"),
        (7, "int.add_request_async is not a coroutine function"),
    ],
)
def test_a_core_of_another_shape_is_left_alone(
    vllm: Vllm, metrics: CollectorRegistry, caplog: pytest.LogCaptureFixture, core: Any, message: str
) -> None:
    llm = vllm.start(core)
    assert_untouched(vllm, llm, metrics, caplog, message)


@pytest.mark.parametrize(
    ("module", "content", "message"),
    [
        ("vllm.v1.engine", {"EngineCoreRequest": SimpleNamespace(__struct_fields__=("request_id",))}, "cache_salt"),
        (CHAT + ".serving", {}, "vllm.entrypoints.openai.chat_completion.serving.OpenAIServingChat cannot be found"),
        (ANTHROPIC + ".protocol", {}, "AnthropicStreamEvent cannot be found"),
        (COMPLETION + ".serving", {"OpenAIServingCompletion": Core}, "Core.create_completion is not a coroutine"),
        (FACTORY, {}, "factory.KVConnectorFactory cannot be found"),
        (FACTORY, {"KVConnectorFactory": Core}, "Core.create_connector is not a class method"),
    ],
)
def test_modules_of_another_shape_are_left_alone(
    vllm: Vllm, metrics: CollectorRegistry, caplog: pytest.LogCaptureFixture, module: str, content: Any, message: str
) -> None:
    vllm.module(module, **content)
    assert_untouched(vllm, vllm.start(), metrics, caplog, message)


def assert_untouched(
    vllm: Vllm, llm: Any, metrics: CollectorRegistry, caplog: pytest.LogCaptureFixture, message: str
) -> None:
    """Nothing is hooked, not even what could be; one line says why; the metrics say so."""
    assert not isinstance(llm.engine_core, Core) or not vars(llm.engine_core).keys() - {"added", "aborted", "dead"}
    for service, method in ((vllm.chat, "create_chat_completion"), (vllm.completion, "create_completion")):
        assert not hasattr(getattr(service, method), "__wrapped__")
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert message in record.getMessage()
    assert info(metrics)["active"] == "0"


def test_a_vllm_without_its_front_end_is_left_alone(
    vllm: Vllm, metrics: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.module("vllm.v1.engine.async_llm")
    plugin.register()
    assert "vllm.v1.engine.async_llm.AsyncLLM cannot be found" in caplog.text
    assert info(metrics)["active"] == "0"


def test_whatever_goes_wrong_the_engine_starts(vllm: Vllm, caplog: pytest.LogCaptureFixture) -> None:
    del vllm.config.cache_config
    assert vllm.start() is not None
    assert "could not start" in caplog.text
