"""The words in which the dashboard is described: rows of panels of queries."""

from dataclasses import dataclass
from enum import StrEnum
from string import Template


class Unit(StrEnum):
    """Grafana's names of units."""

    COUNT = "short"
    SHARE = "percentunit"
    SECONDS = "s"
    BYTES_A_SECOND = "Bps"
    A_SECOND = "cps"


class Kind(StrEnum):
    """Grafana's names of panels."""

    LINES = "timeseries"
    NUMBERS = "stat"
    TABLE = "table"


@dataclass(frozen=True)
class Query:
    """One PromQL expression, and how its series are called.

    `$scope` in it stands for matchers that choose custom resources, `$rate` for a time that holds several scrapes, and
    `$range` for all of the time shown.
    """

    expr: str
    legend: str
    fault: bool = False
    """Whether it tells of faults, or of what is not in use everywhere: no series while all is well."""

    def over(self, scope: str, rate: str, whole: str) -> str:
        """The expression with its placeholders replaced."""
        return Template(self.expr).substitute(scope=scope, rate=rate, range=whole)


@dataclass(frozen=True)
class Panel:
    """One chart. `text` is shown on demand: what is seen, and what it should look like."""

    title: str
    unit: Unit
    text: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    width: int = 8
    """Columns, of Grafana's 24."""
    stacked: bool = False
    limits: tuple[float, float] | None = None
    """Where yellow begins, and where red: above it, or below it if that is the smaller number."""


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def rate(metric: str, by: str = "", legend: str = "", *, more: str = "", fault: bool = False) -> Query:
    """Events a second of a counter, by the values of one label or together; `more` are further matchers."""
    grouped = f"sum by ({by}) " if by else "sum"
    selected = f"{metric}{{{', '.join(filter(None, ('$scope', more)))}}}"
    return Query(f"{grouped}(rate({selected}[$rate]))", legend or f"{{{{{by}}}}}", fault)


def share(part: str, whole: str, legend: str, window: str = "$rate", *, fault: bool = False) -> Query:
    """What part of one counter's events another counts; both with their matchers."""
    return Query(f"sum(rate({part}[{window}])) / sum(rate({whole}[{window}]))", legend, fault)


def percentile(  # noqa: D417 - the rest is as in rate
    quantile: float, histogram: str, by: str, *, more: str = "", window: str = "$rate", fault: bool = False
) -> Query:
    """A percentile of a histogram, by the values of one label.

    Args:
        quantile: From 0 to 1.
    """
    selected = f"{histogram}_bucket{{{', '.join(filter(None, ('$scope', more)))}}}"
    return Query(
        f"histogram_quantile({quantile}, sum by (le, {by}) (rate({selected}[{window}])))", f"{{{{{by}}}}}", fault
    )
