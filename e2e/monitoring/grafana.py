"""Grafana's JSON of the dashboard, by Grafana's own builders; for Grafana 10.4 and later."""

import json
from itertools import count
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import GraphGradientMode, StackingMode, VisibilityMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from e2e.monitoring.dashboard import ROWS, TITLE
from e2e.monitoring.panels import Kind, Panel, Query

SCOPE: Final = 'namespace=~"$namespace", kvloop_io_name=~"$name"'
"""By the labels that PodMonitors give to everything of a custom resource."""
Builder = TypeVar("Builder", timeseries.Panel, stat.Panel, table.Panel)
_SOURCE: Final = DataSourceRef("prometheus", "$datasource")
_HEIGHT: Final = {Kind.NUMBERS: 4, Kind.LINES: 8, Kind.TABLE: 8}
_ANY: Final = ".+"
"""Selected by All: a series without the label is nobody's."""


def text() -> str:
    """The dashboard as JSON, the same each time."""
    whole = json.loads(JSONEncoder(sort_keys=True).encode(_dashboard().build()))
    return json.dumps(_numbered(whole), indent=1, sort_keys=True) + "\n"


def compact(dashboard: str) -> str:
    """The same JSON in one line."""
    return json.dumps(json.loads(dashboard), separators=(",", ":"), sort_keys=True) + "\n"


def _dashboard() -> grafana.Dashboard:
    made = (
        grafana.Dashboard(TITLE)
        .uid(TITLE)
        .tags([TITLE, "vllm"])
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-3h", "now")
        .refresh("1m")
        .with_variable(grafana.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("namespace", "Namespace", "kvloop_router_info", "namespace"))
        .with_variable(
            _variable("name", "Resource", 'kvloop_router_info{namespace=~"$namespace"}', "kvloop_io_name"),
        )
    )
    for row in ROWS:
        made = made.with_row(grafana.Row(row.title))
        for panel in row.panels:
            made = made.with_panel(_PANELS[panel.kind](panel))
    return made


def _variable(name: str, label: str, series: str, values: str) -> grafana.QueryVariable:
    return (
        grafana.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query(f"label_values({series}, {values})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(_ANY)
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def _lines(panel: Panel) -> timeseries.Panel:
    made = _filled(timeseries.Panel(), panel)
    made.min(0).legend(common.VizLegendOptions().show_legend(show_legend=True))
    made.show_points(VisibilityMode.NEVER).span_nulls(span_nulls=False)
    if panel.stacked:
        made.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
        made.fill_opacity(40).gradient_mode(GraphGradientMode.NONE)
    return made


def _numbers(panel: Panel) -> stat.Panel:
    made = _filled(stat.Panel(), panel).reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return made.no_value("none") if all(query.fault for query in panel.queries) else made


def _table(panel: Panel) -> table.Panel:
    hidden = {"excludeByName": dict.fromkeys(("Time", "Value", "__name__", "container", "endpoint", "instance"), True)}
    return _filled(table.Panel(), panel).with_transformation(DataTransformerConfig("organize", options=hidden))


_PANELS: Final[dict[Kind, Any]] = {Kind.LINES: _lines, Kind.NUMBERS: _numbers, Kind.TABLE: _table}


def _filled(made: Builder, panel: Panel) -> Builder:
    made.title(panel.title).description(panel.text).unit(panel.unit).datasource(_SOURCE)
    made.span(panel.width).height(_HEIGHT[panel.kind])
    for query, name in zip(panel.queries, "ABCDEFGH", strict=False):
        made.with_target(_target(query, panel.kind).ref_id(name))
    if panel.limits:
        made.thresholds(_thresholds(*panel.limits))
    return made


def _target(query: Query, kind: Kind) -> prometheus.Dataquery:
    window = "$__rate_interval" if kind is Kind.LINES else "$__range"
    made = prometheus.Dataquery().expr(query.over(SCOPE, "$__rate_interval", window)).legend_format(query.legend)
    if kind is Kind.LINES:
        return made.range()
    return made.instant().format(PromQueryFormat.TABLE if kind is Kind.TABLE else PromQueryFormat.TIME_SERIES)


def _thresholds(yellow: float, red: float) -> grafana.ThresholdsConfig:
    """Green, yellow and red, as values rise to `red` or fall to it."""
    rising = [Threshold(None, "green"), Threshold(yellow, "yellow"), Threshold(red, "red")]
    falling = [Threshold(None, "red"), Threshold(red, "yellow"), Threshold(yellow, "green")]
    return grafana.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(rising if yellow < red else falling)


def _numbered(whole: dict[str, Any]) -> dict[str, Any]:
    """With a number for each panel, by which links and annotations name it."""
    numbers = count(1)
    return whole | {"panels": [panel | {"id": next(numbers)} for panel in whole["panels"]]}
