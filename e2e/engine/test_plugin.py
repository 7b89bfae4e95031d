"""The plugin inside a stock vLLM: mounted as a folder, across API server processes, and left out by VLLM_PLUGINS."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.contract.client import FIRST, Client, eventually
from e2e.contract.test_histories import transfers
from e2e.engine import install, server
from e2e.monitoring.vllm_metrics import FAMILIES
from kvloop import __version__
from kvloop.engine.gate import KV

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from e2e.engine.fleet import RealEngines

pytestmark = pytest.mark.engine

COMPLETIONS, TOKENS = "/v1/completions", "/inference/v1/generate"
WAYS: dict[str, tuple[str, Callable[[list[int], Any], dict[str, Any]]]] = {
    "a list of prompts": (COMPLETIONS, lambda p, kv: {"prompt": [p, p[:200]], KV: kv}),
    "several choices": (COMPLETIONS, lambda p, kv: {"prompt": p, KV: kv, "n": 2, "temperature": 1}),
    "an echo": (COMPLETIONS, lambda p, kv: {"prompt": p, KV: kv, "echo": True}),
    "the prompt's probabilities": (COMPLETIONS, lambda p, kv: {"prompt": p, KV: kv, "prompt_logprobs": 1}),
    "tokens for a chat": (
        "/v1/chat/completions",
        lambda p, kv: {"messages": [{"role": "user", "content": "Read."}], KV: {**kv, "prompt_token_ids": p}},
    ),
    "tokens in, tokens out": (TOKENS, lambda p, kv: {"token_ids": p, KV: kv, "sampling_params": {"max_tokens": 1}}),
    "extra arguments": (
        TOKENS,
        lambda p, kv: {"token_ids": p, "sampling_params": {"max_tokens": 1, "extra_args": {KV: kv}}},
    ),
}
"""Requests with a handle, by where they enter vLLM and how it turns them into requests to its core."""
ATTEMPTS = 6
"""Connections that are opened anew; the kernel spreads them over the two API server processes."""


async def info(client: Client, url: str) -> dict[str, str]:
    """Labels of an engine's one ``kvloop_engine_info``."""
    text = (await client.get(url, "/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith("kvloop_engine_info{")]
    assert line.endswith(" 1.0")
    return dict(re.findall(r'(\w+)="([^"]*)"', line))


async def test_engines_tell_what_they_are(engines: RealEngines, client: Client) -> None:
    boots = set()
    for engine in engines.fleet.running:
        told = await info(client, engine.url)
        assert told["boot_id"]
        boots.add(told.pop("boot_id"))
        assert told == {
            "active": "1", "block_size": "32", "plugin_version": __version__, "vllm_version": "0.32.0",
            "role": "kv_producer" if engine.name.startswith("prefill") else "kv_consumer",
        }  # fmt: skip
        assert f"kvloop {__version__} is active" in engine.log.read_text()
    assert len(boots) == len(engines.fleet.running)


async def test_reports_are_counted(engines: RealEngines, client: Client) -> None:
    async def counts() -> list[float]:
        return [
            await client.metric(engines.prefill, "kvloop_guard_handles_total", reason="partial"),
            await client.metric(engines.prefill, "kvloop_guard_offered_tokens_total"),
            await client.metric(engines.prefill, "kvloop_guard_verified_tokens_total"),
        ]

    first = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], first)
    before = await counts()
    await client.turn(engines.prefill, engines.decode[0], first, one.handle)
    assert [b - a for a, b in zip(before, await counts(), strict=True)] == [1, 339, 288]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_no_way_into_an_engine_leads_round_the_gate(
    engines: RealEngines, client: Client, way: tuple[str, Callable[[list[int], Any], dict[str, Any]]]
) -> None:
    path, write = way
    one = await client.turn(engines.prefill, engines.decode[0], client.tokens(300))
    before = await transfers(client, engines.prefill)
    answer = await client.post(engines.prefill, path, {"max_tokens": 1, **write(client.tokens(390), one.handle)})
    assert answer.status == 200, answer.body
    assert await transfers(client, engines.prefill) == before


async def test_an_adapter_loaded_anew_under_its_name_shares_nothing(
    engines: RealEngines, client: Client, tmp_path: Path
) -> None:
    async def load(folder: Path) -> None:
        for url in (engines.prefill, engines.decode[0]):
            body = {"lora_name": "changing", "lora_path": str(folder), "load_inplace": True}
            assert (await client.request(url, "/v1/load_lora_adapter", body)).status_code == 200

    folders = [shutil.copytree(server.model_folder(install.ensure()) / "adapter", tmp_path / name) for name in "ab"]
    await load(folders[0])
    prompt = client.tokens(300)
    one = await client.turn(engines.prefill, engines.decode[0], prompt, model="changing")
    await load(folders[1])
    longer = prompt + one.tokens + client.tokens(50)
    two = await client.turn(engines.prefill, engines.decode[0], longer, one.handle, model="changing")
    assert two.prefill.report == {"offered": 339, "verified": 0, "reason": "mismatch"}


@pytest.mark.parametrize("value", [0, "", [], "words", 7])
async def test_what_is_no_handle_among_extra_arguments_harms_nobody(
    engines: RealEngines, client: Client, value: Any
) -> None:
    for url in (engines.prefill, engines.decode[0]):
        body = {"prompt": client.tokens(20), "max_tokens": 2, "vllm_xargs": {KV: value}}
        answer = await client.post(url, COMPLETIONS, body)
        assert answer.status == (500 if value else 200)  # vLLM itself refuses what is not empty
        assert (await client.get(url, "/health")).status_code == 200


async def test_vllm_has_the_metrics_that_dashboard_and_alerts_ask_for(engines: RealEngines, client: Client) -> None:
    await client.turn(engines.prefill, engines.decode[0], client.tokens(300))
    for url in (engines.prefill, engines.decode[0]):
        families = text_string_to_metric_families((await client.get(url, "/metrics")).text)
        told = {sample.name: sample.labels.keys() for family in families for sample in family.samples}
        for name, labels in FAMILIES.items():
            assert told.get(name, told.get(f"{name}_sum")) == labels, name


async def test_two_api_server_processes_share_what_was_used(engines: RealEngines, client: Client) -> None:
    """Whichever process a decode leg comes to: prefill's blocks are read once, and all answers are right."""
    decode = engines.fleet.engines["decode-2"].url
    prompt = client.tokens(300)
    leg = await client.complete(engines.prefill, prompt, dict(FIRST))
    cold = await client.cold(engines.prefill, prompt, 12)
    before = await transfers(client, decode)
    body = {
        "model": client.model, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, "kv_transfer_params": leg.handle,
    }  # fmt: skip
    client.leases.clear()
    handles = 0
    for _ in range(ATTEMPTS):
        async with httpx.AsyncClient(timeout=60) as fresh:
            answer = (await fresh.post(decode + "/v1/completions", json=body)).json()
        assert answer["choices"][0]["token_ids"] == cold
        if answer["kv_transfer_params"]:
            handles += 1
            client.leases["mine"] = answer["kv_transfer_params"]
    assert handles == 1

    async def counted() -> bool:
        return await transfers(client, decode) - before == 300

    await eventually(counted, "one read of 300 tokens")
