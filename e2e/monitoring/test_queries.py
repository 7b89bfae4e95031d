"""Every query of the dashboard and of the alerts, asked of a real Prometheus.

It reads a real router, simulated engines, and a real operator on a real API server: first well, then in trouble.
"""

import re
from collections.abc import Iterator
from typing import Final

import httpx
import pytest

from e2e.cluster import Client, eventually
from e2e.control.harness import OperatorProcess, install
from e2e.monitoring.dashboard import ROWS
from e2e.monitoring.scene import TELLS, Moment, Recording, recorded
from e2e.site import resource

pytestmark = pytest.mark.api

NAMESPACE: Final = "monitored"
NOWHERE: Final = {"sameZone": "None", "nodeSelector": {"example.com/pool": "nowhere"}}
"""Where pods may run: on no node, also if other tests in this cluster have simulated ones."""
UNAVAILABLE: Final = re.compile(r'^kvloop_resource_condition\{condition="Available",.*status="False"\} 1', re.MULTILINE)
QUERIES: Final = {f"{panel.title}, {q.legend}": q for row in ROWS for panel in row.panels for q in panel.queries}


@pytest.fixture(scope="module")
def recording(api_cluster: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    folder = tmp_path_factory.mktemp("prometheus")
    with OperatorProcess(install(api_cluster), folder / "operator.log") as operator:
        api_cluster.kubectl("create", "namespace", NAMESPACE)
        api_cluster.apply(resource("demo", NAMESPACE, placement=NOWHERE))
        eventually(lambda: UNAVAILABLE.search(httpx.get(f"{operator.url}/metrics", trust_env=False, timeout=60).text))
        with recorded(folder, operator.url) as recording:
            yield recording
        api_cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_has_series_and_every_series_a_name(recording: Recording, name: str) -> None:
    """While all is well; queries that tell of faults, in one trouble or another."""
    query = QUERIES[name]
    found = [recording.labels(query, recording.moments[m]) for m in (Moment if query.fault else [Moment.WELL])]
    assert any(found)
    words = re.findall(r"{{(\w+)}}", query.legend)
    for series in found:
        names = [tuple(each[word] for word in words) for each in series]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("moment", TELLS)
def test_alerts_tell_of_their_trouble(recording: Recording, moment: Moment) -> None:
    assert TELLS[moment] in recording.alerts(recording.moments[moment])


def test_alerts_tell_of_nothing_while_all_is_well(recording: Recording) -> None:
    """But for the resource in the API server, whose pods run nowhere."""
    assert recording.alerts(recording.moments[Moment.WELL]) == {"KvloopUnavailable"}
