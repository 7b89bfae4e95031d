"""``vllm serve MODEL --flags``: the command line of a simulated engine, as strict as vLLM's."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import orjson
import uvloop

from e2e.enginesim.config import Config, Knobs, Transfer
from e2e.enginesim.server import EngineSim

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("enginesim")


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\S+", text))


# Fields of vLLM's KVTransferConfig; any other key is refused, as pydantic refuses it there.
_TRANSFER_KEYS = _words(
    """
    kv_connector engine_id kv_buffer_device kv_buffer_size kv_role kv_rank kv_parallel_size kv_ip kv_port
    kv_connector_extra_config kv_connector_module_path enable_permute_local_kv kv_load_failure_policy
    """
)
_ROLES = ("kv_producer", "kv_consumer", "kv_both")
_POLICIES = ("fail", "recompute")

# Flags that vLLM 0.32 knows and that make no difference to a simulated engine: with a value, and without.
_IGNORED_VALUES = _words(
    """
    all2all-backend allowed-origins api-key api-server-count async-scheduling-config attention-backend
    attention-config chat-template chat-template-content-format compilation-config config
    data-parallel-address data-parallel-backend data-parallel-rank data-parallel-rpc-port data-parallel-size
    data-parallel-size-local decode-context-parallel-size distributed-executor-backend download-dir
    generation-config gpu-memory-utilization hf-config-path hf-overrides hf-token kv-cache-memory-bytes
    kv-events-config kv-offloading-backend kv-offloading-size limit-mm-per-prompt load-format log-config-file
    log-level long-prefill-token-threshold max-logprobs max-loras max-lora-rank max-num-batched-tokens
    max-cudagraph-capture-size mm-processor-kwargs model-impl model-loader-extra-config moe-backend
    optimization-level otlp-traces-endpoint override-generation-config performance-mode pipeline-parallel-size
    prefix-caching-hash-algo quantization response-role revision root-path runner scheduling-policy seed
    speculative-config ssl-certfile ssl-keyfile stream-interval structured-outputs-config swap-space tokenizer
    tokenizer-mode tokenizer-revision tool-parser-plugin uvicorn-log-level
    """
)
_IGNORED_SWITCHES = _words(
    """
    aggregate-engine-logging async-scheduling disable-access-log-for-endpoints disable-custom-all-reduce
    disable-hybrid-kv-cache-manager disable-log-stats disable-uvicorn-access-log enable-chunked-prefill
    enable-dbo enable-eplb enable-expert-parallel enable-log-outputs enable-log-requests enable-lora
    enable-mfu-metrics enable-server-load-tracking enable-sleep-mode enforce-eager
    exclude-tools-when-tool-choice-none headless kv-cache-metrics skip-tokenizer-init trust-remote-code
    """
)


class ConfigError(ValueError):
    """A setting that vLLM would refuse to start with."""


def main(argv: Sequence[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    arguments = parser()
    options = arguments.parse_args(argv)
    try:
        config = config_of(options, dict(os.environ))
    except (ConfigError, ValueError) as error:
        arguments.error(str(error))
    uvloop.run(_serve(config))
    # vLLM's shutdown waits for nothing else either; open handlers must not keep the process.
    sys.stdout.flush()
    os._exit(0)


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    engine = EngineSim(config)

    def end() -> None:
        engine.take_no_more()  # at once: a request that comes after the signal must find it so
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    await engine.start()
    log.info("Simulated vLLM API server version %s on %s", config.knobs.vllm_version, engine.url)
    ends = (asyncio.create_task(stop.wait()), asyncio.create_task(engine.frontend.engine.wait_until(lambda: False)))
    ended, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if ends[0] not in ended:
        log.critical("the engine core died: %s", engine.frontend.engine.death)
        sys.stdout.flush()
        os._exit(1)
    await engine.drain()


def config_of(options: argparse.Namespace, env: dict[str, str]) -> Config:
    """Raises ConfigError or ValueError where vLLM would not start."""
    model = options.model_tag or options.model
    if not model:
        raise ConfigError("the following arguments are required: model_tag")
    if options.enable_auto_tool_choice and not options.tool_call_parser:
        raise ConfigError("--enable-auto-tool-choice requires --tool-call-parser")
    knobs = Knobs.from_env(env)
    return Config(
        model=model,
        served_model_names=tuple(options.served_model_name or ()),
        host=options.host,
        port=options.port,
        block_size=options.block_size or 16,
        num_gpu_blocks=options.num_gpu_blocks_override,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        prefix_caching=options.enable_prefix_caching is not False,
        tensor_parallel_size=options.tensor_parallel_size,
        shutdown_timeout=options.shutdown_timeout,
        prompt_tokens_details=options.enable_prompt_tokens_details is True,
        reasoning_parser=options.reasoning_parser,
        tool_call_parser=options.tool_call_parser,
        auto_tool_choice=options.enable_auto_tool_choice is True,
        lora_modules=tuple(_lora_name(m) for m in options.lora_modules or ()),
        transfer=transfer_of(options.kv_transfer_config) if options.kv_transfer_config else None,
        side_channel_host=env.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
        side_channel_port=int(env.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")),
        knobs=knobs,
    )


def transfer_of(text: str) -> Transfer:
    """``--kv-transfer-config``; raises ConfigError as vLLM's config class would."""
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(
            f"argument --kv-transfer-config: Value {text} cannot be converted to JSON: {error}"
        ) from error
    if not isinstance(given, dict):
        raise ConfigError("argument --kv-transfer-config: Input should be a valid dictionary")
    unknown = sorted(set(given) - _TRANSFER_KEYS)
    if unknown:
        raise ConfigError(f"argument --kv-transfer-config: Unexpected keyword argument: {', '.join(unknown)}")
    connector = given.get("kv_connector")
    if connector not in ("NixlConnector", "NixlPullConnector"):
        raise ConfigError(f"Unsupported connector type: {connector}; the simulated engine has NixlConnector")
    role, policy = given.get("kv_role"), given.get("kv_load_failure_policy", "fail")
    if role not in _ROLES:
        raise ConfigError(f"kv_role: Input should be {', '.join(_ROLES)}; it must be set when kv_connector is")
    if policy not in _POLICIES:
        raise ConfigError(f"kv_load_failure_policy: Input should be {' or '.join(_POLICIES)}")
    extra: dict[str, Any] = given.get("kv_connector_extra_config", {})
    return Transfer(
        kv_role=role,
        engine_id=given.get("engine_id"),
        kv_load_failure_policy=policy,
        bidirectional_kv_xfer=bool(extra.get("bidirectional_kv_xfer", False)),
        kv_recompute_threshold=int(extra.get("kv_recompute_threshold", 64)),
        decoder_kv_blocks_ttl=float(extra.get("decoder_kv_blocks_ttl", 480)),
        kv_lease_duration=float(extra.get("kv_lease_duration", 30)),
        enforce_handshake_compat=bool(extra.get("enforce_handshake_compat", True)),
    )


class _Parser(argparse.ArgumentParser):
    """vLLM's parser takes flags with underscores too, and no abbreviations."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        return super().parse_args([_dashes(a) for a in given], namespace)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"vllm serve: error: {message}\n")


def _dashes(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def parser() -> _Parser:
    top = _Parser(prog="vllm", allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", allow_abbrev=False)
    serve.add_argument("model_tag", nargs="?")
    add = serve.add_argument
    add("--model")
    add("--served-model-name", nargs="+")
    add("--host")
    add("--port", type=int, default=8000)
    add("--block-size", type=int)
    add("--num-gpu-blocks-override", type=int)
    add("--max-model-len", type=_human_int, default=131_072)
    add("--max-num-seqs", type=int, default=256)
    add("--dtype", choices=("auto", "bfloat16", "float", "float16", "float32", "half"), default="auto")
    add("--kv-cache-dtype", default="auto")
    add("--tensor-parallel-size", "-tp", type=int, default=1)
    add("--shutdown-timeout", type=float, default=0)
    add("--reasoning-parser")
    add("--tool-call-parser")
    add("--lora-modules", nargs="+")
    add("--kv-transfer-config")
    for name in ("enable-prefix-caching", "enable-auto-tool-choice", "enable-prompt-tokens-details"):
        add(f"--{name}", action=argparse.BooleanOptionalAction)
    for name in sorted(_IGNORED_VALUES):
        add(f"--{name}", help=argparse.SUPPRESS)
    for name in sorted(_IGNORED_SWITCHES):
        add(f"--{name}", action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
    return top


def _human_int(text: str) -> int:
    """``1k`` is 1000 and ``1K`` is 1024, as in vLLM."""
    factor = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
    return int(float(text.rstrip("kmgKMG")) * factor)


def _lora_name(module: str) -> str:
    """``name=path``, or a JSON object with a name."""
    return str(orjson.loads(module)["name"]) if module.startswith("{") else module.partition("=")[0]
