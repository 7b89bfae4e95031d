"""The dashboard as a picture: each panel's queries, as they stand in Grafana's JSON, asked of a real Prometheus.

It is drawn by matplotlib, not by Grafana, and the engines are simulated: the pictures say both.
"""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator
from PIL import Image

from e2e.cluster import Cluster
from e2e.cluster.progress import step
from e2e.cluster.system import leased
from e2e.control.harness import OperatorProcess, install
from e2e.monitoring.generate import DASHBOARD, ROOT
from e2e.monitoring.panels import Kind, Unit
from e2e.monitoring.scene import Moment, Pace, Recording, recorded
from e2e.site import resource
from kvloop.cli.load import Workload

IMAGES: Final = ROOT / "operator" / "docs" / "images"
PACE: Final = Pace(
    interval_s=1,
    well_s=60,
    trouble_s=20,
    rest_s=15,
    rate_s=10,
    lease_s=30,
    time_scale=1,
    kv_tokens=200_000,
    workload=Workload(clients=4, system_tokens=(2000, 8000, 16_000), pause_s=2),
)
_PARTS: Final = {"dashboard-reuse.png": (0, 4), "dashboard-serving.png": (4, 8)}
"""Pictures, and which of the dashboard's rows they show."""
_INCH: Final = 0.34
"""Height of one of Grafana's grid rows; a column is twice as wide."""
_SUFFIXES: Final = {Unit.SECONDS: "s", Unit.BYTES_A_SECOND: "B/s", Unit.A_SECOND: "/s", Unit.COUNT: ""}
_COLOURS: Final = {"green": "#2c8a3d", "yellow": "#c79100", "red": "#c4162a"}

Panel = dict[str, Any]
"""As in Grafana's JSON."""


def pictures(folder: Path = IMAGES) -> list[Path]:
    """Play and draw; gives the files. Takes some five minutes and starts an API server."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = _rows()
    with _played() as recording, step("drawing the dashboard"):
        for name, (first, last) in _PARTS.items():
            panels = [panel for row in rows[first:last] for panel in row]
            _figure(panels, recording).savefig(folder / name)
            Image.open(folder / name).quantize(128).save(folder / name, optimize=True)
    return [folder / name for name in _PARTS]


@contextmanager
def _played() -> Iterator[Recording]:
    with (
        tempfile.TemporaryDirectory() as temporary,
        leased("monitoring-") as name,
        Cluster(name, "api") as cluster,
        OperatorProcess(install(cluster), Path(temporary) / "operator.log") as operator,
        step("playing: a router and simulated engines, first well, then in trouble"),
    ):
        cluster.apply(resource("demo", "default"))
        with recorded(Path(temporary), operator.url, PACE) as recording:
            yield recording


def _rows() -> list[list[Panel]]:
    """The panels, by rows; each begins with its heading."""
    rows: list[list[Panel]] = []
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            rows.append([])
        rows[-1].append(panel)
    return rows


def _figure(panels: list[Panel], recording: Recording) -> Figure:
    top = min(panel["gridPos"]["y"] for panel in panels)
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) - top
    figure = Figure(figsize=(24 * 2 * _INCH, (height + 3) * _INCH), dpi=100, facecolor="#f4f5f5")
    FigureCanvasAgg(figure)
    for panel in panels:
        place = panel["gridPos"]
        corner = (place["x"] / 24, 1 - (place["y"] + place["h"] - top) / (height + 3))
        size = (place["w"] / 24, place["h"] / (height + 3))
        if panel["type"] == "row":
            figure.text(0.006, corner[1] + 0.2 * size[1], panel["title"], weight="bold", fontsize=11)
        else:
            _panel(figure, (*corner, *size), panel, recording)
    figure.text(0.006, 1.2 / (height + 3), _caption(recording), fontsize=9, va="center")
    return figure


def _caption(recording: Recording) -> str:
    numbered = ", ".join(f"{number} {moment}" for number, moment in enumerate(_troubles(recording), 1))
    return (
        "SIMULATED: a real Prometheus read a real router, simulated engines (no GPU) and a real operator without nodes."
        " Drawn by matplotlib from the dashboard's own queries; in Grafana it looks different.\n"
        f"Shaded: {numbered}."
    )


def _end(recording: Recording) -> float:
    return max(recording.moments.values()) + recording.pace.rest_s


def _troubles(recording: Recording) -> dict[Moment, float]:
    """When each trouble had gone on for its time; the late follow-ups come without one."""
    return {moment: at for moment, at in recording.moments.items() if moment not in {Moment.WELL, Moment.LATE}}


def _panel(figure: Figure, box: tuple[float, float, float, float], panel: Panel, recording: Recording) -> None:
    x, y, width, height = box
    inch = 1 / figure.get_figheight()
    low, high = (0.52, 0.3) if panel["type"] == Kind.LINES else (0.05, 0.3)
    side = 0.032 if panel["type"] == Kind.LINES else 0.006
    axes = figure.add_axes((x + side, y + low * inch, width - side - 0.008, height - (low + high) * inch))
    axes.set_title(panel["title"], fontsize=8.5, loc="left", pad=3)
    {Kind.LINES: _lines, Kind.NUMBERS: _numbers, Kind.TABLE: _table}[Kind(panel["type"])](axes, panel, recording)


def _ask(panel: Panel, recording: Recording, *, instant: bool) -> list[tuple[str, Any]]:
    """Names and points of a panel's series."""
    window = {"namespace": "default", "name": "demo", "__rate_interval": f"{recording.pace.rate_s}s"}
    window["__range"] = f"{round(_end(recording) - recording.begin)}s"
    found = []
    for target in panel["targets"]:
        expression = re.sub(r"\$(\w+)", lambda match: window[match[1]], target["expr"])
        if instant:
            series = recording.prometheus.query(expression, _end(recording))
        else:
            series = recording.prometheus.query_range(expression, recording.begin, _end(recording), 1)
        points = "value" if instant else "values"
        found += [(_named(target["legendFormat"], each["metric"]), each[points]) for each in series]
    return found


def _text(value: float, unit: str) -> str:
    """A number with its unit, as Grafana would write it."""
    if unit == Unit.SHARE:
        return f"{value:.0%}"
    if unit == Unit.A_SECOND and abs(value) < 1000:
        return f"{value:.3g}/s"
    return EngFormatter(_SUFFIXES[Unit(unit)]).format_data(float(f"{value:.3g}"))


def _named(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: labels[match[1]], legend)


def _lines(axes: Axes, panel: Panel, recording: Recording) -> None:
    times = range(round(_end(recording) - recording.begin) + 1)
    series = [
        (name, {round(t - recording.begin): float(value) for t, value in points})
        for name, points in _ask(panel, recording, instant=False)
    ]
    stacked = panel["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode") == "normal"
    if stacked and series:
        heights = [[points.get(t, 0) for t in times] for _, points in series]
        axes.stackplot(times, heights, labels=[name for name, _ in series])
    else:
        for name, points in series:
            axes.plot(times, [points.get(t, nan) for t in times], label=name, linewidth=1.1)
    _shade(axes, recording)
    axes.set(xlim=(0, times[-1]), ylim=(0, None))
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _text(value, unit)))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=unit == Unit.COUNT))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} s"))
    axes.tick_params(labelsize=6.5, length=2)
    axes.grid(alpha=0.25)
    if series:
        legend = axes.legend(loc="upper left", bbox_to_anchor=(-0.01, -0.09), fontsize=6, ncols=5, frameon=False)
        legend.set_alignment("left")


def _shade(axes: Axes, recording: Recording) -> None:
    above = axes.get_xaxis_transform()
    for number, end in enumerate(_troubles(recording).values(), 1):
        begin = end - recording.begin - recording.pace.trouble_s
        axes.axvspan(begin, end - recording.begin, color="#d44a3a", alpha=0.10, linewidth=0)
        axes.text(begin, 0.97, f" {number}", fontsize=6, color="#a33", va="top", transform=above)


def _numbers(axes: Axes, panel: Panel, recording: Recording) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    found = [(name, float(value[1])) for name, value in _ask(panel, recording, instant=True)]
    axes.set(xticks=[], yticks=[])
    for number, (name, value) in enumerate(found):
        place = (number + 0.5) / len(found)
        colours = [s["color"] for s in defaults.get("thresholds", {}).get("steps", ()) if value >= (s["value"] or 0)]
        colour = _COLOURS[colours[-1] if colours else "green"]
        axes.text(place, 0.55, _text(value, defaults["unit"]), fontsize=17, ha="center", va="center", color=colour)
        axes.text(place, 0.12, name, fontsize=7, ha="center")


def _table(axes: Axes, panel: Panel, recording: Recording) -> None:
    axes.set(xticks=[], yticks=[])
    for number, (name, _) in enumerate(_ask(panel, recording, instant=True)):
        axes.text(0.01, 0.92 - 0.1 * number, name, fontsize=8, va="top", family="monospace")
