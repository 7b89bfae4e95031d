"""vLLM's HTTP surface beside the legs: errors, quirks, metrics, information."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.contract.client import FIRST, Client
from e2e.contract.engines import MODEL, Engines, Setup
from e2e.contract.test_chat import ASK, PATH, TOOLS


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_a_healthy_engine_says_so_with_an_empty_body(engines: Engines, client: Client, path: str) -> None:
    response = await client.get(engines.prefill, path)
    assert (response.status_code, response.content) == (200, b"")


async def test_what_an_engine_tells_about_itself(engines: Engines, client: Client, setup: Setup) -> None:
    assert (await client.get(engines.prefill, "/version")).json() == {"version": setup.vllm_version}
    assert (await client.get(engines.prefill, "/load")).json() == {"server_load": 0}
    card = (await client.get(engines.prefill, "/v1/models")).json()["data"][0]
    assert (card["id"], card["max_model_len"]) == (MODEL, setup.max_model_len)


async def test_tokens_of_a_text_and_of_messages(engines: Engines, client: Client) -> None:
    text = "The agent reads the file.\n\tdef main(): return 42 # ä 漢 🙂"
    tokens = (await client.post(engines.prefill, "/tokenize", {"prompt": text})).body
    assert tokens["count"] == len(tokens["tokens"])
    assert (await client.post(engines.prefill, "/detokenize", {"tokens": tokens["tokens"]})).body == {"prompt": text}
    rendered = (await client.post(engines.prefill, "/tokenize", {"messages": [ASK]})).body["tokens"]
    leg = await client.post(engines.prefill, PATH, {"messages": [ASK], "max_tokens": 1, "return_token_ids": True})
    assert leg.body["prompt_token_ids"] == rendered


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        pytest.param({"model": "nope"}, 404, "NotFoundError", id="unknown model"),
        pytest.param({"max_tokens": 5000}, 400, "BadRequestError", id="longer than the context"),
        pytest.param({"min_tokens": 2, "max_tokens": 1}, 400, "BadRequestError", id="min_tokens above max_tokens"),
        pytest.param({"messages": None}, 400, "BadRequestError", id="no messages"),
        pytest.param({"messages": "hello"}, 400, "Bad Request", id="messages of a wrong type"),
        pytest.param({"tool_choice": "required"}, 400, "BadRequestError", id="a tool demanded, none given"),
        pytest.param({"n": 2}, 400, "BadRequestError", id="several greedy choices"),
        pytest.param({"stop": ["a", "b", "c", "d", "e"]}, 400, "Bad Request", id="too many stop strings"),
        pytest.param({"kv_transfer_params": {"prompt_token_ids": [-1]}}, 400, "BadRequestError", id="bad token id"),
    ],
)
async def test_errors_have_vllms_shape(
    engines: Engines, client: Client, body: dict[str, Any], status: int, kind: str
) -> None:
    answer = await client.post(engines.prefill, PATH, {"messages": [ASK], "max_tokens": 4, **body})
    assert answer.status == status
    assert (answer.body["error"]["type"], answer.body["error"]["code"]) == (kind, status)
    assert answer.body["error"]["message"]


async def test_a_demanded_tool_call_cut_after_one_token_is_text(engines: Engines, client: Client) -> None:
    body = {"messages": [ASK], "max_tokens": 1, "tools": TOOLS, "tool_choice": "required"}
    answer = await client.post(engines.prefill, PATH, {**body, "kv_transfer_params": dict(FIRST)})
    assert answer.status == 200
    choice = answer.body["choices"][0]
    assert "<tool_call>".startswith(choice["message"]["content"])
    assert choice["finish_reason"] == "length"


async def test_the_request_id_of_a_header_is_in_the_answers_id_and_in_the_handle(
    engines: Engines, client: Client
) -> None:
    body = {"messages": [ASK], "max_tokens": 1, "kv_transfer_params": dict(FIRST)}
    answer = await client.post(engines.prefill, PATH, body, {"X-Request-Id": "my-id-1"})
    assert answer.body["id"] == "chatcmpl-my-id-1"
    assert answer.handle is not None
    assert answer.handle["remote_request_id"].startswith("chatcmpl-my-id-1-")


async def test_several_prompts_choices_and_an_echo(engines: Engines, client: Client) -> None:
    body = {"prompt": ["One. ", "Two. "], "n": 2, "temperature": 1, "top_k": 1, "max_tokens": 3, "echo": True}
    answer = await client.post(engines.decode[0], "/v1/completions", body)
    texts = [c["text"] for c in answer.body["choices"]]
    assert [c["index"] for c in answer.body["choices"]] == [0, 1, 2, 3]
    assert [t[:5] for t in texts] == ["One. ", "One. ", "Two. ", "Two. "]
    assert answer.body["usage"]["completion_tokens"] <= 12


async def test_cached_tokens_in_the_usage_are_the_prefills(engines: Engines, client: Client) -> None:
    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    prompt = first + one.tokens + client.tokens(30)
    two = await client.turn(engines.prefill, engines.decode[0], prompt, one.handle)
    assert two.prefill.body["usage"]["prompt_tokens_details"]["cached_tokens"] == 339
    assert two.decode.body["usage"]["prompt_tokens_details"]["cached_tokens"] == 339


async def test_a_read_moves_the_readers_counters(engines: Engines, client: Client) -> None:
    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    names: tuple[tuple[str, dict[str, str], int], ...] = (
        ("vllm:prompt_tokens_by_source_total", {"source": "external_kv_transfer"}, 339),
        ("vllm:prompt_tokens_by_source_total", {"source": "local_compute"}, 51),
        ("vllm:external_prefix_cache_hits_total", {}, 339),
        ("vllm:nixl_xfer_time_seconds_count", {}, 1),
        ("vllm:nixl_num_failed_transfers_total", {}, 0),
        ("vllm:prompt_tokens_total", {}, 390),
        ("vllm:request_success_total", {"finished_reason": "length"}, 1),
        ("vllm:time_to_first_token_seconds_count", {}, 1),
    )
    before = [await client.metric(engines.prefill, name, **labels) for name, labels, _ in names]
    await client.complete(engines.prefill, first + one.tokens + client.tokens(50), one.handle)
    after = [await client.metric(engines.prefill, name, **labels) for name, labels, _ in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [wanted for *_, wanted in names]
    assert await client.metric(engines.prefill, "vllm:nixl_bytes_transferred_sum") > 0


async def test_every_metric_that_the_router_and_the_operator_read_is_there(engines: Engines, client: Client) -> None:
    text = (await client.get(engines.decode[0], "/metrics")).text
    for name in (
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info",
        "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total",
        "vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_cached_by_source_total", "vllm:generation_tokens_total",
        "vllm:nixl_post_time_seconds_count", "vllm:nixl_num_descriptors_count", "vllm:nixl_num_kv_expired_reqs_total",
        "vllm:nixl_num_failed_notifications_total", "vllm:nixl_num_notifications_after_expiry_total",
        "vllm:request_prefill_kv_computed_tokens_count", "vllm:num_requests_waiting_by_reason",
    ):  # fmt: skip
        assert f"\n{name}{{" in text, name


async def test_the_plugin_tells_what_it_is(engines: Engines, client: Client, setup: Setup) -> None:
    labels = {"active": "1", "role": "kv_consumer", "vllm_version": setup.vllm_version, "block_size": "32"}
    assert await client.metric(engines.decode[0], "kvloop_engine_info", **labels) == 1


@pytest.mark.parametrize("setup", [Setup(guarded=False)])
async def test_without_the_plugin_nobody_claims_to_be_it(engines: Engines, client: Client) -> None:
    assert "kvloop" not in (await client.get(engines.decode[0], "/metrics")).text


@pytest.mark.parametrize("setup", [Setup(vllm_version="0.20.0", guarded=False)])
async def test_vllm_020_has_no_way_back(engines: Engines, client: Client) -> None:
    prompt = client.tokens(300)
    first = await client.complete(engines.prefill, prompt, dict(FIRST))
    second = await client.complete(engines.decode[0], prompt, first.handle, 20)
    assert second.status == 200
    assert second.body["kv_transfer_params"] is None
