"""What `kvloop advise` and `kvloop simulate` start from: a log or a trace, and the system that it ran on."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import typer

from kvloop.advice.evidence import Evidence
from kvloop.advice.published import MODELS, QWEN3_32B, Model
from kvloop.advice.turns import evidence
from kvloop.cli.exits import errors, fail
from kvloop.cli.traces import Loaded, TraceError, read_log, read_trace


class ModelName(StrEnum):
    """Published systems."""

    QWEN3_32B = "qwen3-32b"
    GLM_5_FP8 = "glm-5-fp8"


class Output(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"


Log = Annotated[
    str | None, typer.Option(metavar="FILE", help="Access log of the router; - is standard input, as for kubectl logs.")
]
Trace = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Public trace: Mooncake's or Bailian's JSON lines; - is standard input."),
]
Assumed = Annotated[
    ModelName | None,
    typer.Option("--model", help="Published system to take times and memory from, where they were not measured."),
]
DecodeCapacity = Annotated[
    int | None,
    typer.Option(min=1, metavar="TOKENS", help="KV cache of one decode pod: vLLM logs it as GPU KV cache size."),
]
DecodePods = Annotated[int, typer.Option(min=1, help="Decode pods.")]
MaxPinned = Annotated[int, typer.Option(min=1, max=100, metavar="PERCENT", help="router.maxPinnedPercent.")]
PrefillCacheHit = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=100,
        metavar="PERCENT",
        help="What prefill finds in its own prefix cache; by default what the log tells.",
    ),
]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Turns, what they tell, and the system to calculate with."""

    loaded: Loaded
    evidence: Evidence
    model: Model
    """Measured lines and memory, or else those of the published system."""
    assumed: tuple[str, ...]
    """What is not measured, and of which published system it is."""


def load(log: str | None, trace: str | None, assumed: ModelName | None) -> tuple[Loaded, Model]:
    """Turns of the one file that is named, and the published system for what it does not tell.

    Raises:
        Exit: the file or the command line is unusable.
    """
    if (log is None) == (trace is None):
        raise fail("name one file, with --log or with --trace")
    model = MODELS[assumed] if assumed else QWEN3_32B
    try:
        loaded = read_log(log) if log is not None else read_trace(str(trace), model)
    except TraceError as error:
        raise fail(str(error)) from error
    for line in loaded.warnings():
        errors.print(f"warning: {line}", style="yellow")
    return loaded, model


def measured(
    loaded: Loaded,
    model: Model,
    *,
    complete: bool,
    capacity: int | None,
    pods: int,
    pinned: int,
    cache_hit: float | None,
) -> Traffic:
    """What the turns tell, with the published system for what they do not, where it is to be `complete`."""
    told = evidence(loaded.turns, loaded.timed)
    assumed = []
    if complete and told.prefill is None:
        assumed.append("prefill times")
    if complete and told.transfer is None:
        assumed.append("transfer times")
    if complete and capacity is None:
        assumed.append("size of decode's KV cache")
    system = replace(
        model,
        prefill=told.prefill or model.prefill,
        transfer=told.transfer or model.transfer,
        capacity_tokens=capacity or model.capacity_tokens,
    )
    running = told.decode_running_tokens
    filled = replace(
        told,
        prefill=system.prefill if complete else told.prefill,
        transfer=system.transfer if complete else told.transfer,
        decode_capacity_tokens=system.capacity_tokens if complete else capacity,
        decode_running_tokens=None if running is None else running / pods,
        decode_pods=pods,
        max_pinned_percent=pinned,
        prefill_cache_hit_percent=told.prefill_cache_hit_percent if cache_hit is None else cache_hit,
    )
    return Traffic(loaded, filled, system, tuple(assumed))
