"""Every query of the dashboard and of the alerts, asked of a real Prometheus.

It reads a real router, simulated engines, and a real operator on a real API server: first well, then in trouble.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
import yaml

from e2e.cluster import Client, eventually
from e2e.control.harness import OperatorProcess, install
from e2e.monitoring.dashboard import ROWS
from e2e.monitoring.generate import RULES
from e2e.monitoring.panels import Query
from e2e.monitoring.scene import Moment, Recording, recorded
from e2e.site import resource

pytestmark = pytest.mark.api

NAMESPACE: Final = "monitored"
SCOPE: Final = 'namespace=~"default", kvloop_io_name=~"demo"'
QUERIES: Final = {f"{panel.title}, {q.legend}": q for row in ROWS for panel in row.panels for q in panel.queries}
FIRES: Final = {
    "KvloopHandlesExpiring": Moment.LATE,
    "KvloopGuardInactive": Moment.GUARD,
    "KvloopQueueFull": Moment.CROWD,
    "KvloopPinnedMemoryHigh": Moment.HELD,
    "KvloopDecodeOnly": Moment.PREFILL,
    "KvloopRouterErrors": Moment.DECODE,
}
"""Alerts, and the trouble that they tell of; those that are not here need another time or place."""


@pytest.fixture(scope="module")
def recording(api_cluster: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    folder = tmp_path_factory.mktemp("prometheus")
    with OperatorProcess(install(api_cluster), folder / "operator.log") as operator:
        api_cluster.kubectl("create", "namespace", NAMESPACE)
        api_cluster.apply(resource("demo", NAMESPACE))
        eventually(lambda: "kvloop_resource_condition{" in httpx.get(f"{operator.url}/metrics", trust_env=False).text)
        with recorded(folder, operator.url) as recording:
            yield recording
        api_cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def labels(recording: Recording, query: Query, moment: Moment) -> list[dict[str, str]]:
    """Of the series at a moment, as Grafana asks for them with one resource chosen."""
    at = recording.moments[moment]
    expression = query.over(SCOPE, "2s", f"{round(at - recording.begin)}s")
    return [series["metric"] for series in recording.prometheus.query(expression, at)]


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_has_series_and_every_series_a_name(recording: Recording, name: str) -> None:
    """While all is well; queries that tell of faults, in one trouble or another."""
    query = QUERIES[name]
    found = [labels(recording, query, moment) for moment in (Moment if query.fault else (Moment.WELL,))]
    assert any(found)
    words = re.findall(r"{{(\w+)}}", query.legend)
    for series in found:
        names = [tuple(each[word] for word in words) for each in series]
        assert len(set(names)) == len(names)


def alerts() -> dict[str, str]:
    """Expressions of the alerts, looking back as shortly as the play is."""
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: re.sub(r"\[\d+[mhd]\]", "[3s]", rule["expr"]) for group in groups for rule in group["rules"]}


@pytest.mark.parametrize("name", alerts())
def test_alerts_tell_of_their_trouble_and_of_nothing_while_all_is_well(recording: Recording, name: str) -> None:
    def tells(moment: Moment) -> bool:
        return bool(recording.prometheus.query(alerts()[name], recording.moments[moment]))

    assert tells(Moment.WELL) is (name == "KvloopUnavailable"), "the operator's resource has no pods here"
    if moment := FIRES.get(name):
        assert tells(moment)
