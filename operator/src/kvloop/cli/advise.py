"""`kvloop advise`: what to set, from a log or a trace, without any cluster."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvloop.advice.advice import Advice, CurvePoint, Recommendation
from kvloop.advice.advisor import advise as advised
from kvloop.advice.evidence import Evidence, Line
from kvloop.api import histogram
from kvloop.cli.exits import NO, fail
from kvloop.cli.traffic import (
    Assumed,
    DecodeCapacity,
    DecodePods,
    Log,
    MaxPinned,
    Output,
    PrefillCacheHit,
    Trace,
    Traffic,
    load,
    measured,
)

console = Console()
_PERCENTILES: Final = (0.5, 0.75, 0.9, 0.99)


def advise(  # noqa: PLR0913, PLR0917 (each is an option of the command)
    log: Log = None,
    trace: Trace = None,
    model: Assumed = None,
    decode_capacity: DecodeCapacity = None,
    decode_pods: DecodePods = 1,
    max_pinned: MaxPinned = 50,
    prefill_cache_hit: PrefillCacheHit = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            min=1, metavar="SECONDS", help="In force: the lesser of router.leaseSeconds and the TTL less 10 s."
        ),
    ] = None,
    threshold: Annotated[
        int | None, typer.Option(min=0, metavar="TOKENS", help="In force: transfer.kvRecomputeThresholdTokens.")
    ] = None,
    holdout: Annotated[
        int | None, typer.Option(min=0, max=100, metavar="PERCENT", help="In force: router.holdoutPercent.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw gaps, worth and break-even as a PNG.")] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="Print as.")] = Output.TABLE,
) -> None:
    """Advise TTL, recompute threshold, holdout, and whether to reuse at all, from a log or a trace.

    A log has the times of your own system, and lacks only the size of decode's KV cache. A trace has neither: they are
    those of the published system. Advice says where it cannot tell, and is never applied by itself.

    Exit codes: 0 advice; 1 nothing can be told yet; 2 the file or the command line is unusable.
    """
    loaded, published = load(log, trace, model)
    traffic = measured(
        loaded,
        published,
        complete=trace is not None or model is not None,
        capacity=decode_capacity,
        pods=decode_pods,
        pinned=max_pinned,
        cache_hit=prefill_cache_hit,
    )
    known = replace(traffic.evidence, ttl=ttl, threshold=threshold, holdout_percent=holdout)
    advice = advised(known)
    if output is Output.JSON:
        typer.echo(json.dumps(_summary(traffic, known, advice), indent=2))
    else:
        console.print(_report(traffic, known, advice))
    if plot:
        from kvloop.cli import charts  # noqa: PLC0415 (a second of imports, for those alone who want a plot)

        try:
            charts.advice(plot, known, advice)
        except OSError as error:
            raise fail(f"cannot write {plot}: {error.strerror}") from error
    if all(each.value is None for each in _settings(advice).values()):
        raise typer.Exit(NO)


def _settings(advice: Advice) -> dict[str, Recommendation[int] | Recommendation[bool]]:
    """Recommendations by the field of the custom resource."""
    return {
        "router.leaseSeconds": advice.ttl,
        "transfer.kvRecomputeThresholdTokens": advice.threshold,
        "router.holdoutPercent": advice.holdout,
        "transfer.bidirectional": advice.verdict,
    }


def _summary(traffic: Traffic, known: Evidence, advice: Advice) -> dict[str, Any]:
    """All of it, in camelCase as in the custom resource's status."""
    loaded = traffic.loaded
    return {
        "source": {
            "file": loaded.name,
            "format": loaded.format,
            "turns": len(loaded.turns),
            "followUps": sum(turn.gap is not None for turn in loaded.turns),
            "unusableLines": loaded.bad,
            "passedOverLines": loaded.passed_over,
            "assumed": {"model": traffic.model.name, "what": list(traffic.assumed)} if traffic.assumed else None,
        },
        "evidence": {
            "gapSeconds": {f"p{share * 100:.0f}": round(_gap(known, share), 2) for share in _PERCENTILES},
            "turnTokens": round(known.turn_tokens),
            "turnsPerSecond": round(known.turns_per_second, 4),
            "peakTurnsPerSecond": round(known.peak_turns_per_second or 0, 4),
            "prefill": _line(known.prefill),
            "transfer": _line(known.transfer),
            "prefillCacheHitPercent": known.prefill_cache_hit_percent,
            "decodeCapacityTokens": known.decode_capacity_tokens,
            "decodeRunningTokens": known.decode_running_tokens and round(known.decode_running_tokens),
        },
        "advice": {name: asdict(each) for name, each in _settings(advice).items()},
        "breakEvenTokens": advice.break_even_tokens and [round(each) for each in advice.break_even_tokens],
        "savedSeconds": advice.saved_seconds,
        "curve": [
            {
                "ttlSeconds": point.ttl,
                "hitShare": round(point.hit_share, 4),
                "pinnedTokensPerPod": round(point.pinned_tokens),
                "wastedShare": round(point.wasted_share, 4),
                "netSecondsPerTurn": point.net_seconds,
            }
            for point in advice.curve
        ],
    }


def _line(line: Line | None) -> dict[str, float] | None:
    if line is None:
        return None
    return {"interceptSeconds": line.intercept, "secondsPerToken": line.slope, "samples": line.samples}


def _report(traffic: Traffic, known: Evidence, advice: Advice) -> RenderableType:
    parts: list[RenderableType] = [_heading(traffic, known), Text(""), _recommendations(known, advice)]
    if advice.curve:
        parts += [Text(""), _curve(known, advice.curve)]
    return Group(
        *parts, Text("\nNothing is applied by itself. Methods and assumptions: operator/docs/advice.md", "dim")
    )


def _heading(traffic: Traffic, known: Evidence) -> Text:
    loaded = traffic.loaded
    follow_ups = sum(turn.gap is not None for turn in loaded.turns)
    text = Text.assemble(
        (f"{loaded.name}", "bold"),
        f" ({loaded.format}): {len(loaded.turns)} turns, {follow_ups} of them follow-ups",
    )
    if known.gaps:
        gaps = ", ".join(f"p{share * 100:.0f} {_gap(known, share):.3g} s" for share in _PERCENTILES)
        text.append(f"\nGap between turns: {gaps}")
    if traffic.assumed:
        text.append(f"\nAssumed, as published of {traffic.model.name}: {', '.join(traffic.assumed)}", "yellow")
    return text


def _recommendations(known: Evidence, advice: Advice) -> RenderableType:
    """A line for each setting, and the reason below it."""
    in_force = (known.ttl, known.threshold, known.holdout_percent, None)
    parts: list[RenderableType] = []
    for (name, each), now in zip(_settings(advice).items(), in_force, strict=True):
        line = Text.assemble((f"{name}: ", "bold"), "" if now is None else f"{now:g} in force, ")
        if each.value is None:
            line.append("no advice", "yellow")
        else:
            line.append(f"{str(each.value).lower()} advised", "bold green")
            line.append("" if each.confident else ", not sure", "yellow")
        parts += [line, Padding(Text(each.reason), (0, 0, 0, 4))]
    return Group(*parts)


def _curve(known: Evidence, curve: Sequence[CurvePoint]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("TTL s", "In time", "Held a pod", "Of decode", "In vain", "Net ms a turn"):
        table.add_column(column, justify="right")
    for point in curve:
        share = point.pinned_tokens / known.decode_capacity_tokens if known.decode_capacity_tokens else None
        table.add_row(
            f"{point.ttl:g}",
            f"{point.hit_share:.0%}",
            f"{point.pinned_tokens:,.0f}",
            "" if share is None else f"{share:.0%}",
            f"{point.wasted_share:.0%}",
            "" if point.net_seconds is None else f"{1000 * point.net_seconds:.1f}",
        )
    return table


def _gap(known: Evidence, share: float) -> float:
    return histogram.percentile(known.gaps, share)
