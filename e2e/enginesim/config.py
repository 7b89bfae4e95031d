"""What a simulated engine is started with."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from e2e.enginesim.speed import PRESETS, WIRES, Speed, Wire

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Transfer:
    """``--kv-transfer-config``, with vLLM's defaults."""

    kv_role: str = "kv_both"
    engine_id: str | None = None
    kv_load_failure_policy: str = "fail"
    bidirectional_kv_xfer: bool = False
    kv_recompute_threshold: int = 64
    decoder_kv_blocks_ttl: float = 480
    kv_lease_duration: float = 30
    enforce_handshake_compat: bool = True


@dataclass(frozen=True)
class Features:
    """What a vLLM release can do, from the sources of the releases named."""

    bidirectional: bool
    lease_settings: bool
    expiry_in_handle: bool
    prompt_token_ids: bool
    handle_in_stream: bool
    connector_version: int

    @classmethod
    def of(cls, version: str) -> Features:
        number = tuple(int(part) for part in version.split("+", maxsplit=1)[0].split(".")[:2])
        versions = ((0, 3), (21, 3), (22, 4), (26, 5), (28, 7), (30, 11), (32, 14), (33, 15))
        return cls(
            bidirectional=number >= (0, 21),
            lease_settings=number >= (0, 22),
            expiry_in_handle=number >= (0, 26),
            prompt_token_ids=number >= (0, 32),
            handle_in_stream=number >= (0, 33),
            connector_version=max(v for minor, v in versions if (0, minor) <= number),
        )


@dataclass(frozen=True)
class Knobs:
    """What real engines have no flag for: read from ENGINESIM_* variables, so that a pod spec can set them."""

    vllm_version: str = "0.32.0"
    """The release to play, ENGINESIM_VLLM_VERSION."""
    speed: Speed = PRESETS["none"]
    """Name of a speed model, ENGINESIM_SPEED_MODEL."""
    time_scale: float = 1.0
    """Factor on all modelled times, ENGINESIM_TIME_SCALE; 0 waits for nothing. Leases are not scaled."""
    seed: int = 0
    """Engines of another seed are another model, ENGINESIM_SEED."""
    kv_tokens: int = 400_000
    """Size of the KV cache, ENGINESIM_KV_TOKENS."""
    mean_reply_tokens: int = 300
    """Replies end by themselves after so many tokens on average, ENGINESIM_MEAN_REPLY_TOKENS; 0 is never."""
    drift_percent: float = 0.0
    """Share of tokens whose text encodes to others, ENGINESIM_DRIFT_PERCENT."""
    one_way: bool = False
    """Behaves as if bidirectional_kv_xfer had not reached it, ENGINESIM_ONE_WAY."""
    wire: Wire | None = None
    """What telemetry makes of transfers, ENGINESIM_WIRE: EFA or TCP; by default what they are, which is little."""

    @classmethod
    def from_env(cls, env: dict[str, str] | None = None) -> Knobs:
        """Raises ValueError with the variable's name if one cannot be understood."""
        env = dict(os.environ) if env is None else env
        known: dict[str, tuple[str, Callable[[str], Any]]] = {
            "VLLM_VERSION": ("vllm_version", str),
            "SPEED_MODEL": ("speed", PRESETS.__getitem__),
            "TIME_SCALE": ("time_scale", float),
            "SEED": ("seed", int),
            "KV_TOKENS": ("kv_tokens", int),
            "MEAN_REPLY_TOKENS": ("mean_reply_tokens", int),
            "DRIFT_PERCENT": ("drift_percent", float),
            "ONE_WAY": ("one_way", {"true": True, "false": False}.__getitem__),
            "WIRE": ("wire", WIRES.__getitem__),
        }
        values: dict[str, Any] = {}
        for name, text in env.items():
            if not name.startswith("ENGINESIM_"):
                continue
            try:
                key, parse = known[name.removeprefix("ENGINESIM_")]
                values[key] = parse(text)
            except (KeyError, ValueError) as error:
                raise ValueError(
                    f"{name}={text} is not understood; known are {', '.join('ENGINESIM_' + k for k in known)}, and "
                    f"speeds {', '.join(PRESETS)}, wires {', '.join(WIRES)}"
                ) from error
        return cls(**values)


@dataclass(frozen=True)
class Config:
    model: str
    served_model_names: tuple[str, ...] = ()
    host: str | None = None
    port: int = 8000
    block_size: int = 16
    num_gpu_blocks: int | None = None
    max_model_len: int = 131_072
    max_num_seqs: int = 256
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    prefix_caching: bool = True
    tensor_parallel_size: int = 1
    shutdown_timeout: float = 0
    prompt_tokens_details: bool = False
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    auto_tool_choice: bool = False
    lora_modules: tuple[str, ...] = ()
    transfer: Transfer | None = None
    side_channel_host: str = "localhost"
    side_channel_port: int = 5600
    knobs: Knobs = field(default_factory=Knobs)

    def __post_init__(self) -> None:
        if self.num_blocks * self.block_size < self.max_model_len:
            raise ValueError(
                f"the KV cache holds {self.num_blocks * self.block_size} tokens, less than one sequence of "
                f"{self.max_model_len}: raise ENGINESIM_KV_TOKENS or lower --max-model-len"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return self.served_model_names or (self.model,)

    @property
    def num_blocks(self) -> int:
        return self.num_gpu_blocks or max(64, self.knobs.kv_tokens // self.block_size)
