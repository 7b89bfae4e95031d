"""The command line, and the process it starts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest

from e2e.enginesim import cli
from e2e.enginesim.config import Config, Transfer
from e2e.enginesim.speed import WIRES
from kvloop import __version__
from kvloop.engine import bundle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).parents[3]
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}


def parsed(*flags: str, env: dict[str, str] | None = None) -> Config:
    return cli.config_of(cli.parser().parse_args(["serve", *flags]), env or {})


def test_flags_are_spelled_as_vllm_spells_them() -> None:
    extra = {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": 120, "backends": ["LIBFABRIC"]}
    config = parsed(
        "Qwen/Qwen3-32B", "--served-model-name", "qwen", "q", "--max_model_len", "32k", "--block-size=32", "-tp", "8",
        "--no-enable-prefix-caching", "--shutdown-timeout", "60", "--dtype", "bfloat16", "--gpu-memory-utilization=0.9",
        "--kv-transfer-config", orjson.dumps({**NIXL, "kv_connector_extra_config": extra}).decode(),
        env={"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.7", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5700"},
    )  # fmt: skip
    assert (config.model, config.names, config.max_model_len, config.block_size) == (
        "Qwen/Qwen3-32B", ("qwen", "q"), 32_000, 32,
    )  # fmt: skip
    assert (config.tensor_parallel_size, config.prefix_caching, config.shutdown_timeout) == (8, False, 60)
    assert (config.side_channel_host, config.side_channel_port) == ("10.0.0.7", 5700)
    assert config.transfer == Transfer("kv_producer", bidirectional_kv_xfer=True, decoder_kv_blocks_ttl=120)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["m", "--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["m", "--max-model", "5"], "unrecognized arguments"),
        (["m", "--port", "http"], "invalid int value"),
        (["m", "--dtype", "int3"], "invalid choice"),
        ([], "model_tag"),
        (["m", "--kv-transfer-config", "{"], "cannot be converted to JSON"),
        (["m", "--kv-transfer-config", "[]"], "valid dictionary"),
        (["m", "--kv-transfer-config", '{"kv_conector": "NixlConnector"}'], "Unexpected keyword argument: kv_conector"),
        (["m", "--kv-transfer-config", '{"kv_connector": "NixlConnector"}'], "kv_role"),
        (["m", "--kv-transfer-config", '{"kv_connector": "Other", "kv_role": "kv_both"}'], "Unsupported connector"),
        (["m", "--enable-auto-tool-choice"], "requires --tool-call-parser"),
    ],
)
def test_what_vllm_would_not_start_with_is_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["serve", *flags])
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err


def test_knobs_come_from_the_environment_and_unknown_ones_are_named() -> None:
    env = {"ENGINESIM_TIME_SCALE": "0.5", "ENGINESIM_SPEED_MODEL": "glm-5-fp8", "ENGINESIM_VLLM_VERSION": "0.33.0"}
    knobs = parsed("m", env=env | {"ENGINESIM_ONE_WAY": "true", "ENGINESIM_WIRE": "TCP"}).knobs
    assert (knobs.time_scale, knobs.speed.prefill_ms, knobs.vllm_version) == (0.5, 68, "0.33.0")
    assert (knobs.one_way, knobs.wire) == (True, WIRES["TCP"])
    for name, value in (("ENGINESIM_SPED", "1"), ("ENGINESIM_SEED", "one"), ("ENGINESIM_WIRE", "carrier pigeon")):
        with pytest.raises(ValueError, match=name):
            parsed("m", env={name: value})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def process(*flags: str, **env: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A simulated engine as a process of its own, ready, with its URL."""
    transfer = {**NIXL, "kv_connector_extra_config": {"bidirectional_kv_xfer": True}}
    port = free_port()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "e2e.enginesim", "serve", "m", "--host", "127.0.0.1", "--port", str(port),
        "--kv-transfer-config", orjson.dumps(transfer).decode(), *flags,
        cwd=ROOT, stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": "0", **env},
    )  # fmt: skip
    try:
        await wait_until_ready(child, f"http://127.0.0.1:{port}")
        yield child, f"http://127.0.0.1:{port}"
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def wait_until_ready(child: asyncio.subprocess.Process, url: str) -> None:
    async with asyncio.timeout(30), aiohttp.ClientSession() as session:
        while True:
            assert child.returncode is None
            try:
                async with session.get(url + "/health") as response:
                    assert response.status == 200
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("plugins", "active"), [(None, True), ("kvloop,lora_filesystem_resolver", True), ("other", False), ("", False)]
)
async def test_the_guard_runs_if_the_mounted_plugin_is_found_and_permitted(
    tmp_path: Path, plugins: str | None, active: bool
) -> None:
    for path, text in bundle.files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    env = {"PYTHONPATH": str(tmp_path), **({} if plugins is None else {"VLLM_PLUGINS": plugins})}
    async with process(**env) as (_, url), aiohttp.ClientSession() as session, session.get(url + "/metrics") as answer:
        text = await answer.text()
    assert (f'plugin_version="{__version__}"' in text) is active
    assert ('kvloop_engine_info{active="1"' in text) is active


async def stream_lines(session: aiohttp.ClientSession, url: str, tokens: int) -> aiohttp.ClientResponse:
    body: dict[str, Any] = {"prompt": "Go on.", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    response = await session.post(url + "/v1/completions", json=body)
    await response.content.readline()
    return response


SLOW = {"ENGINESIM_SPEED_MODEL": "qwen3-32b", "ENGINESIM_TIME_SCALE": "1"}


async def test_an_idle_engine_ends_at_once() -> None:
    async with process("--shutdown-timeout", "60") as (child, _):
        child.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(child.wait(), 20) == 0


async def test_with_a_shutdown_timeout_streams_finish_and_new_requests_are_not_answered() -> None:
    async with process("--shutdown-timeout", "60", **SLOW) as (child, url), aiohttp.ClientSession() as session:
        response = await stream_lines(session, url, 100)
        child.send_signal(signal.SIGTERM)
        async with session.get(url + "/health") as health:
            assert health.status == 200
        late = asyncio.create_task(session.post(url + "/v1/completions", json={"prompt": "x", "max_tokens": 1}))
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(child.wait(), 20) == 0
        with pytest.raises(aiohttp.ClientError):
            await late


async def test_a_lease_holds_the_end_back_until_the_timeout() -> None:
    async with process("--shutdown-timeout", "1") as (child, url), aiohttp.ClientSession() as session:
        body = {"prompt": "x " * 50, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        async with session.post(url + "/v1/completions", json=body) as response:
            assert (await response.json())["kv_transfer_params"]
        began = asyncio.get_running_loop().time()
        child.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(child.wait(), 20) == 0
        assert asyncio.get_running_loop().time() - began >= 1


async def test_without_a_shutdown_timeout_streams_stall_until_the_client_hangs_up() -> None:
    async with process(**SLOW) as (child, url), aiohttp.ClientSession() as session:
        response = await stream_lines(session, url, 5000)
        child.send_signal(signal.SIGTERM)

        async def drained() -> None:
            while await response.content.readline():
                pass

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(drained(), 1)
        assert child.returncode is None
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(url + "/health")
        response.close()
        assert await asyncio.wait_for(child.wait(), 20) == 0
