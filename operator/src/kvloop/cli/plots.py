"""Plots of a load, as PNG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kvloop.cli.load import Turn
from kvloop.cli.measure import Arms, Times, rows


def write(folder: Path, arms: Arms) -> list[Path]:
    """Write the plots of all arms; gives their files. Raises OSError."""
    plots = {"first-token-by-length.png": by_length(arms), "first-token-by-turn.png": by_turn(arms)}
    for name, figure in plots.items():
        figure.savefig(folder / name)
    return [folder / name for name in plots]


def by_length(arms: Arms) -> Figure:
    """First-token times of follow-ups against the length of the whole prompt."""
    found = rows(arms)
    lines = {name: [(row.prompt_tokens, row.arms[name]) for row in found] for name in arms}
    return _figure("Time to the first token of follow-ups", "tokens of the whole prompt (median)", lines)


def by_turn(arms: Arms) -> Figure:
    """First-token times turn by turn, over all lengths."""
    lines = {name: [(number + 1.0, Times.of(turns)) for number, turns in _turns(arms[name]).items()] for name in arms}
    return _figure("Time to the first token, turn by turn", "turn of the conversation", lines)


def _turns(turns: Sequence[Turn]) -> dict[int, list[Turn]]:
    return {number: [each for each in turns if each.number == number] for number in sorted({t.number for t in turns})}


def _figure(title: str, x: str, lines: Mapping[str, Sequence[tuple[float, Times]]]) -> Figure:
    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    for number, (name, points) in enumerate(lines.items()):
        at = [place for place, _ in points]
        colour = f"C{number}"
        axes.plot(at, [times.p50_ms for _, times in points], "o-", color=colour, label=f"{name}, p50")
        axes.plot(at, [times.p95_ms for _, times in points], ":", color=colour, label=f"{name}, p95")
    axes.set(title=title, xlabel=x, ylabel="milliseconds", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
