"""The report's plots."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from e2e.report.scenarios import Published

Line = Sequence[tuple[float, float]]


def first_tokens(path: Path, title: str, lines: Mapping[str, Line], published: Published | None = None) -> None:
    """Mean time to the first token against the length of the system prompt; published end points as crosses."""
    axes, figure = _axes(title, "tokens of the system prompt", "mean time to the first token, ms")
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), "o-", label=name)
    if published:
        for colour, (name, ends) in enumerate((("off", published.off), ("on", published.on))):
            ends_at = (published.lengths[0], published.lengths[-1])
            axes.plot(ends_at, ends, "x", color=f"C{colour}", markersize=10, label=f"{name}, published")
    axes.legend()
    figure.savefig(path)


def memory(path: Path, title: str, lines: Mapping[str, Line]) -> None:
    """Share of decode's KV cache that is held for later turns, over time."""
    axes, figure = _axes(title, "seconds", "percent of decode's KV cache")
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), label=name)
    axes.legend()
    figure.savefig(path)


def _axes(title: str, x: str, y: str) -> tuple[Any, Figure]:
    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y, ylim=(0, None))
    axes.grid(alpha=0.3)
    return axes, figure
