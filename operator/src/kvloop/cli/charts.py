"""Plots of advice and of simulations, as PNG files."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kvloop.advice.advice import Advice
from kvloop.advice.case import Case
from kvloop.advice.evidence import Evidence
from kvloop.advice.optimum import LEAST
from kvloop.advice.replay import Result
from kvloop.advice.ttl import curve

_ADVISED: Final = "C2"
_IN_FORCE: Final = "0.5"
_STEPS: Final = 80
_TICKS: Final = (15, 60, 300, 900, 3600)
"""Seconds."""


def advice(path: Path, known: Evidence, given: Advice) -> None:
    """Draw what each TTL brings, what it is worth, and where fetching begins to pay; raises OSError."""
    figure, (share, worth, times) = _figure("Advice", 3)
    steps = [LEAST * (_TICKS[-1] / LEAST) ** (i / _STEPS) for i in range(_STEPS + 1)]
    points = curve(Case.of(known), steps)
    ttls = [point.ttl for point in points]
    share.plot(ttls, [100 * point.hit_share for point in points], label="follow-ups in time")
    share.plot(ttls, [100 * point.wasted_share for point in points], label="of the memory, held in vain")
    share.set(title="What a TTL brings", ylabel="percent", ylim=(0, 101))
    net = [math.nan if point.net_seconds is None else 1000 * point.net_seconds for point in points]
    worth.plot(ttls, net, label="worth of a turn")
    worth.set(title="What it is worth, less the memory", ylabel="milliseconds of prefill a turn", ylim=_about_top(net))
    for axes in (share, worth):
        _marks(axes, given.ttl.value, known.ttl, "s")
        axes.set(xscale="log", xlabel="TTL, seconds", xlim=(_TICKS[0], _TICKS[-1]))
        axes.set_xticks(_TICKS, labels=map(str, _TICKS))
        axes.minorticks_off()
        axes.legend(fontsize="small")
    _lines(times, known, given)
    figure.savefig(path, format="png")


def simulation(path: Path, model: str, results: Sequence[Result]) -> None:
    """Draw what the TTLs bring and cost, a line for each threshold; raises OSError. The first result has no reuse."""
    figure, (wait, reused, held) = _figure(f"Simulated on {model}", 3)
    off, grid = results[0], results[1:]
    for number, threshold in enumerate(sorted({each.settings.threshold for each in grid})):
        line = [each for each in grid if each.settings.threshold == threshold]
        ttls, colour, name = [each.settings.ttl for each in line], f"C{number}", f"threshold {threshold}"
        wait.plot(ttls, [1000 * each.first_token_p50 for each in line], "o-", color=colour, label=name)
        wait.plot(ttls, [1000 * each.first_token_p95 for each in line], "o:", color=colour)
        reused.plot(ttls, [100 * each.token_share for each in line], "o-", color=colour, label=name)
        held.plot(ttls, [each.pinned_p95 / 1e6 for each in line], "o-", color=colour, label=name)
    wait.axhline(1000 * off.first_token_p50, color=_IN_FORCE, label="without reuse")
    wait.axhline(1000 * off.first_token_p95, color=_IN_FORCE, linestyle=":")
    wait.set(title="First token of follow-ups: p50, and p95 dotted", ylabel="milliseconds", ylim=(0, None))
    reused.set(title="History that prefill need not compute", ylabel="percent of its tokens", ylim=(0, 101))
    held.set(title="Held by decode for later turns, p95", ylabel="million tokens, all pods", ylim=(0, None))
    tried = sorted({each.settings.ttl for each in grid})
    for axes in (wait, reused, held):
        axes.set(xscale="log", xlabel="TTL, seconds")
        axes.set_xticks(tried, labels=[f"{each:g}" for each in tried])
        axes.minorticks_off()
        axes.legend(fontsize="small")
    figure.savefig(path, format="png")


def _figure(title: str, panels: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.8 * panels, 3.9), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    axes: Any = figure.subplots(1, panels)
    for each in axes:
        each.grid(alpha=0.3)
    return figure, axes


def _lines(axes: Any, known: Evidence, given: Advice) -> None:
    axes.set(title="To compute, or to fetch", xlabel="tokens", ylabel="milliseconds")
    if known.prefill is None or known.transfer is None:
        axes.set(title="Times to compute or to fetch are not known")
        return
    most = 3.0 * max(given.threshold.value or 0, 1000)
    tokens = [most * i / _STEPS for i in range(_STEPS + 1)]
    axes.plot(tokens, [1000 * known.prefill.slope * each for each in tokens], label="compute")
    axes.plot(tokens, [1000 * known.transfer.at(each) for each in tokens], label="fetch")
    low, high = given.break_even_tokens or (0.0, 0.0)
    if high > low:
        axes.axvspan(min(low, most), min(high, most), color=_ADVISED, alpha=0.2, label="break-even, 95%")
    _marks(axes, given.threshold.value, known.threshold, "tokens")
    axes.set(xlim=(0, most))
    axes.legend(fontsize="small")


def _marks(axes: Any, advised: float | None, in_force: float | None, unit: str) -> None:
    for value, colour, name in ((advised, _ADVISED, "advised"), (in_force, _IN_FORCE, "in force")):
        if value is not None:
            axes.axvline(value, color=colour, linestyle="--", label=f"{name}: {value:g} {unit}")


def _about_top(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Limits that show the top well: far below it nobody looks."""
    known = [each for each in values if not math.isnan(each)]
    top = max(known, default=0.0)
    return (max(min(known), -top), 1.2 * top) if top > 0 else (None, None)
