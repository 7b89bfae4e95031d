"""`kvloop simulate`: what other settings would have brought, from a log or a trace, on a calculated system."""

import csv
import io
import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvloop.advice.replay import Replay, Result, Settings, System
from kvloop.cli.exits import fail
from kvloop.cli.progress import progress
from kvloop.cli.traffic import (
    Assumed,
    DecodeCapacity,
    DecodePods,
    Log,
    MaxPinned,
    PrefillCacheHit,
    Trace,
    Traffic,
    load,
    measured,
)

console = Console()
OFF: Final = Settings(ttl=0, threshold=0)
MOST_CELLS: Final = 400


_COLUMNS: Final = (
    "TTL\ns", "Thres-\nhold", "Reu-\nsed", "Of the\ntokens", "Too\nlate", "Given\nup", "First\nms p50", "token\np95",
    "Prefill\nsaved", "Held,\np95", "Of de-\ncode", "Turns\nleft",
)  # fmt: skip


class Output(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def simulate(  # noqa: PLR0913, PLR0917 (each is an option of the command)
    log: Log = None,
    trace: Trace = None,
    model: Assumed = None,
    ttl: Annotated[
        str, typer.Option(metavar="SECONDS,...", help="TTLs to try: seconds for which a handle can be used.")
    ] = "15,30,60,120,240,470",
    threshold: Annotated[str, typer.Option(metavar="TOKENS,...", help="Recompute thresholds to try.")] = "64,1024,4096",
    decode_capacity: DecodeCapacity = None,
    decode_pods: DecodePods = 1,
    max_pinned: MaxPinned = 50,
    prefill_pods: Annotated[
        int | None,
        typer.Option(min=1, help="Prefill pods, one turn at a time each. If left out, no turn waits for another."),
    ] = None,
    prefill_cache_hit: PrefillCacheHit = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw what each TTL brings and costs as a PNG.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="Print as.")] = Output.TABLE,
) -> None:
    """Replay a log or a trace over a grid of TTLs and thresholds, on a calculated system.

    Turns come when they came, however fast the system is. Times are straight lines: those of the log if it has enough,
    or else those of the published system. All results are simulated.

    Exit codes: 0 simulated; 2 the file or the command line is unusable.
    """
    grid = [
        Settings(each, int(tokens)) for each in _numbers("--ttl", ttl) for tokens in _numbers("--threshold", threshold)
    ]
    if len(grid) > MOST_CELLS:
        raise fail(f"{len(grid)} combinations of --ttl and --threshold are too many; try {MOST_CELLS} at most")
    loaded, published = load(log, trace, model)
    traffic = measured(
        loaded,
        published,
        complete=True,
        capacity=decode_capacity,
        pods=decode_pods,
        pinned=max_pinned,
        cache_hit=prefill_cache_hit,
    )
    own = traffic.evidence.prefill_cache_hit_percent or 0.0
    system = System(traffic.model, decode_pods, prefill_pods, max_pinned, own)
    results = _run(Replay(loaded.turns, system), [OFF, *grid])
    _print(output, traffic, system, results)
    if plot:
        from kvloop.cli import charts  # noqa: PLC0415 (a second of imports, for those alone who want a plot)

        try:
            charts.simulation(plot, traffic.model.name, results)
        except OSError as error:
            raise fail(f"cannot write {plot}: {error.strerror}") from error


def _numbers(option: str, text: str) -> list[float]:
    """Numbers with commas between, by rising size and each once."""
    found = set()
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0 < value <= 1e9 and not (option == "--threshold" and value == 0):
            raise fail(f"{option}: {part.strip()!r} is no number above 0; write them as in {option} 30,60,120")
        found.add(value)
    return sorted(found)


def _run(replay: Replay, settings: Sequence[Settings]) -> list[Result]:
    results = []
    with progress("replaying", len(settings)) as done:
        for each in settings:
            results.append(replay.run(each))
            done()
    return results


def _print(output: Output, traffic: Traffic, system: System, results: Sequence[Result]) -> None:
    rows = [_row(result, results[0]) for result in results]
    if output is Output.JSON:
        typer.echo(json.dumps(_summary(traffic, system, rows), indent=2))
    elif output is Output.CSV:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        typer.echo(text.getvalue(), nl=False)
    else:
        console.print(_table(traffic, system, results))


def _row(result: Result, off: Result) -> dict[str, float | int]:
    """One result, with names that say the unit."""
    return {
        "ttlSeconds": result.settings.ttl,
        "thresholdTokens": result.settings.threshold,
        "followUps": result.follow_ups,
        "reused": result.reused,
        "expired": result.expired,
        "displaced": result.displaced,
        "hitShare": round(result.hit_share, 4),
        "tokenShare": round(result.token_share, 4),
        "firstTokenP50Ms": round(1000 * result.first_token_p50, 1),
        "firstTokenP95Ms": round(1000 * result.first_token_p95, 1),
        "prefillSeconds": round(result.prefill_seconds, 1),
        "prefillSavedShare": round(_saved(result, off), 4),
        "pinnedTokensMean": round(result.pinned_mean),
        "pinnedTokensP95": round(result.pinned_p95),
        "pinnedTokensPeak": result.pinned_peak,
        "concurrencyLeft": round(result.concurrency_left, 1),
    }


def _saved(result: Result, off: Result) -> float:
    return 1 - result.prefill_seconds / off.prefill_seconds if off.prefill_seconds > 0 else 0.0


def _summary(traffic: Traffic, system: System, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    model = system.model
    return {
        "simulated": True,
        "source": {"file": traffic.loaded.name, "format": traffic.loaded.format, "turns": len(traffic.loaded.turns)},
        "system": {
            "model": model.name,
            "assumed": list(traffic.assumed),
            "prefillSeconds": [model.prefill.intercept, model.prefill.slope],
            "transferSeconds": [model.transfer.intercept, model.transfer.slope],
            "decodeCapacityTokens": system.capacity_tokens,
            "decodePods": system.decode_pods,
            "prefillPods": system.prefill_pods,
            "maxPinnedPercent": system.max_pinned_percent,
            "prefillCacheHitPercent": system.prefill_cache_hit_percent,
        },
        "off": rows[0],
        "results": list(rows[1:]),
    }


def _table(traffic: Traffic, system: System, results: Sequence[Result]) -> RenderableType:
    loaded, off = traffic.loaded, results[0]
    heading = Text.assemble(
        (loaded.name, "bold"),
        f" ({loaded.format}): {off.turns} turns, {off.follow_ups} of them follow-ups",
        ("\nSIMULATED", "bold yellow"),
        f"; decode pods: {system.decode_pods} of {system.model.capacity_tokens:,} tokens",
        f"; as published of {system.model.name}: {', '.join(traffic.assumed)}"
        if traffic.assumed
        else "; times of the log",
    )
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(*_cells(result, off, system))
    return Group(heading, Text(""), table)


def _cells(result: Result, off: Result, system: System) -> list[str]:
    settings = result.settings
    return [
        "off" if result is off else f"{settings.ttl:g}",
        "" if result is off else f"{settings.threshold}",
        f"{result.hit_share:.0%}",
        f"{result.token_share:.0%}",
        f"{result.expired}",
        f"{result.displaced}",
        f"{1000 * result.first_token_p50:.0f}",
        f"{1000 * result.first_token_p95:.0f}",
        f"{_saved(result, off):.0%}",
        f"{result.pinned_p95 / 1e6:.2f}M",
        f"{result.pinned_p95 / system.capacity_tokens:.0%}",
        f"{result.concurrency_left:,.0f}",
    ]
