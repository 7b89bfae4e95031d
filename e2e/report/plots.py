"""The report's plots, from its figures."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from e2e.report.scenarios import PUBLISHED

Figures = Mapping[str, Any]
Lines = Mapping[str, Iterable[tuple[float, float]]]


def write(folder: Path, figures: Figures) -> None:
    """Draw all of them into a folder."""
    for model, arms in figures["published"].items():
        known = PUBLISHED[model]
        lines = {**_means(arms), "off, published": _ends(known.lengths, known.off)}
        lines["on, published"] = _ends(known.lengths, known.on)
        _first_tokens(f"{known.title}, SIMULATED", lines).savefig(folder / f"{model}.png")
    caches = {
        f"cache {name}; reuse {arm}": points
        for name, arms in figures["caches"].items()
        for arm, points in _means(arms).items()
    }
    _first_tokens("Prefill's own prefix cache, Qwen3-32B, SIMULATED", caches).savefig(folder / "prefill-cache.png")
    held = {name: [tuple(each) for each in run["held"]] for name, run in figures["memory"].items()}
    title = "Held for later turns, GLM-5-FP8, SIMULATED"
    _draw(title, "seconds", "percent of decode's KV cache", held, "").savefig(folder / "memory.png")
    title = "Follow-ups on two real vLLM engines, tiny model, CPU"
    _first_tokens(title, _means(figures["real"])).savefig(folder / "real-cpu.png")


def _means(arms: Figures) -> Lines:
    return {arm: [(row["length"], row["meanMs"]) for row in rows] for arm, rows in arms.items()}


def _ends(lengths: tuple[int, ...], times: tuple[float, float]) -> list[tuple[float, float]]:
    return [(lengths[0], times[0]), (lengths[-1], times[1])]


def _first_tokens(title: str, lines: Lines) -> Figure:
    return _draw(title, "tokens of the system prompt", "mean time to the first token, ms", lines, "o")


def _draw(title: str, x: str, y: str, lines: Lines, marker: str) -> Figure:
    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    for number, (name, points) in enumerate(lines.items()):
        published = name.endswith("published")
        style = {"linestyle": "", "marker": "x", "markersize": 10} if published else {"marker": marker}
        axes.plot(*zip(*points, strict=True), label=name, color=f"C{number % 2 if published else number}", **style)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
