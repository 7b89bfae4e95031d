"""Dashboard and alerts without a running Prometheus: what they ask for exists, is well named, and is explained."""

import json
import re
from collections.abc import AsyncIterator
from itertools import combinations
from pathlib import Path
from typing import Final, TypeVar

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from e2e.charts.generate import CASES
from e2e.monitoring import generate, targets
from e2e.monitoring.dashboard import ROWS
from e2e.monitoring.prometheus import promtool
from e2e.monitoring.vllm_metrics import FAMILIES
from e2e.router.harness import user
from e2e.router.sim import Fleet
from kvloop.api.labels import Reason
from kvloop.controller.cache import Cache
from kvloop.controller.metrics import Metrics as OperatorMetrics
from kvloop.router.outcome import Arm, Outcome

Labels = dict[str, frozenset[str]]
"""Names of series, and the labels that they have."""

ROOT: Final = generate.ROOT
RUNBOOKS: Final = ROOT / "operator" / "docs" / "runbooks.md"
RULES: Final = generate.rules()
QUERIES: Final = {
    f"{panel.title}, {query.legend}": query.over('namespace=~"x", kvloop_io_name=~"y"', "1m", "1h")
    for row in ROWS
    for panel in row.panels
    for query in panel.queries
} | {name: rule["expr"] for name, rule in RULES.items()}
TURN: Final = Outcome(
    dialect="chat", stream=True, status=200, follow_up=True, miss="used", decode_only="no_prefill", turn=2,
    first_byte_seconds=0.2, last_byte_seconds=0.5, pieces=31, gap_seconds=3,
)  # fmt: skip


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """A router and engines that have series of every kind."""
    async with Fleet() as fleet:
        reply = await fleet.turn({"model": "tiny", "messages": [user("Hello. " * 100)]})
        await fleet.turn({"model": "tiny", "messages": [user("Hello. " * 100), reply, user("More")]})
        metrics = fleet.router.app.metrics
        metrics.observe(TURN)
        metrics.observe(Outcome(dialect="chat", status=200, not_eligible="n"))
        metrics.observe_store("take", 0.001)
        metrics.finished(Arm.REUSED, 2, 1.0)
        yield fleet


@pytest.fixture
def registries(fleet: Fleet) -> dict[str, CollectorRegistry]:
    """By who has them."""
    operator = OperatorMetrics(Cache())
    operator.passed("ok", 0.01)
    operator.requested("get", "Pod", 200, 0.01)
    operator.scraped("router", good=True)
    engine = fleet.prefill[0].frontend.engine.metrics.registry
    return {"router": fleet.router.app.metrics.registry, "prefill": engine, "operator": operator.registry}


def exposed(registry: CollectorRegistry, target: dict[str, str]) -> Labels:
    """Series of a registry, with the labels that a PodMonitor adds."""
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set(target)).update(sample.labels)
    return {name: frozenset(labels) for name, labels in found.items()}


@pytest.fixture
def known(registries: dict[str, CollectorRegistry]) -> Labels:
    """Everything that there is to ask for: ours, and what vLLM's list has."""
    operator = exposed(registries["operator"], targets.operator())
    # It needs custom resources; that it has these labels is tested with the controller.
    operator["kvloop_resource_condition"] = frozenset({*targets.operator(), "name", "condition", "status", "reason"})
    engine = exposed(registries["prefill"], targets.demo("prefill"))
    ours = {name: labels for name, labels in engine.items() if name.startswith("kvloop_")}
    return exposed(registries["router"], targets.demo("router")) | operator | ours | of_vllm()


def of_vllm() -> Labels:
    target = targets.demo("prefill").keys()
    series = {name + suffix: labels for name, labels in FAMILIES.items() for suffix in ("", "_sum", "_count")}
    buckets = {f"{name}_bucket": labels | {"le"} for name, labels in FAMILIES.items()}
    return {name: labels | target for name, labels in (series | buckets).items()}


Part = TypeVar("Part", promql_parser.VectorSelector, promql_parser.AggregateExpr)


def parts(expression: promql_parser.Expr, kind: type[Part]) -> list[Part]:
    """All parts of an expression of one kind."""
    found: list[Part] = []

    def visit(part: promql_parser.Expr) -> None:
        if isinstance(part, kind):
            found.append(part)

    promql_parser.walk(expression, visit)
    return found


def test_queries_ask_for_series_and_labels_that_there_are(known: Labels) -> None:
    for where, query in QUERIES.items():
        expression = promql_parser.parse(query)
        selectors = parts(expression, promql_parser.VectorSelector)
        assert selectors
        for each in selectors:
            assert each.name in known, where
            assert {matcher.name for matcher in each.matchers.matchers} <= known[each.name], where
        for grouping in parts(expression, promql_parser.AggregateExpr):
            inner = [known[each.name or ""] for each in parts(grouping.expr, promql_parser.VectorSelector)]
            by = grouping.modifier.labels if grouping.modifier else ()
            assert inner[0].intersection(*inner).issuperset(by), where


def test_simulated_engines_have_vllms_metrics(fleet: Fleet) -> None:
    engine = exposed(fleet.prefill[0].frontend.engine.metrics.registry, {})
    for name, labels in FAMILIES.items():
        assert engine.get(name, engine.get(f"{name}_sum")) == labels, name


@pytest.mark.parametrize("of", ["router", "prefill", "operator"])
def test_our_names_follow_prometheus_conventions(registries: dict[str, CollectorRegistry], of: str) -> None:
    text = generate_latest(registries[of]).decode()
    promtool("check", "metrics", text="".join(line for line in text.splitlines(keepends=True) if "kvloop_" in line))


def test_alerts_fire_when_they_should_and_say_what_is_wrong() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", generate.RULES)
    promtool("test", "rules", ROOT / "e2e" / "monitoring" / "rules_test.yaml")


def test_every_alert_is_tested_and_has_its_runbook() -> None:
    tested = (ROOT / "e2e" / "monitoring" / "rules_test.yaml").read_text(encoding="utf-8")
    sections = dict(
        re.findall(r"^### (\w+)\n\*\*Says:\*\* (.+?)(?=^#|\Z)", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL)
    )
    assert sorted(sections) == sorted(RULES)
    for name, rule in RULES.items():
        assert f"alertname: {name}\n        eval_time" in tested, name
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["runbook_url"] == f"{generate.RUNBOOKS_URL}#{name.lower()}"
        assert "**Do:**" in sections[name] or "| then |" in sections[name]


def test_reasons_that_alerts_name_are_reasons() -> None:
    for rule in RULES.values():
        for each in parts(promql_parser.parse(rule["expr"]), promql_parser.VectorSelector):
            if each.name == "kvloop_resource_condition":
                assert {m.value for m in each.matchers.matchers if m.name == "reason"} <= set(Reason)


def test_generated_files_are_up_to_date() -> None:
    assert not generate.stale()


def test_the_chart_carries_the_same_dashboard_and_alerts() -> None:
    text = (CASES / "everything" / "out.yaml").read_text(encoding="utf-8")
    objects = {body["kind"]: body for body in yaml.safe_load_all(text) if body}
    assert json.loads(objects["ConfigMap"]["data"]["kvloop.json"]) == json.loads(generate.DASHBOARD.read_text())
    ours = generate.RULES.read_text().replace(generate.RUNBOOKS_URL, "https://wiki.example/kvloop/runbooks")
    assert objects["PrometheusRule"]["spec"] == yaml.safe_load(ours)


def test_panels_have_places_of_their_own() -> None:
    panels = json.loads(generate.DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for a, b in combinations([panel["gridPos"] for panel in panels], 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert a["x"] + a["w"] <= 24


def test_pod_monitors_read_engines_routers_and_the_operator() -> None:
    for component in ("prefill", "decode"):
        labels = targets.demo(component)
        assert labels.items() >= {"kvloop_io_name": "demo", "kvloop_io_role": component, "endpoint": "http"}.items()
        assert labels["kvloop_io_revision"]
    assert targets.demo("router").items() >= {"kvloop_io_name": "demo", "endpoint": "admin"}.items()
    assert targets.operator()["endpoint"] == "metrics"


def test_the_plain_configuration_in_the_docs_is_valid(tmp_path: Path) -> None:
    page = (ROOT / "operator" / "docs" / "monitoring.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(scrape_configs:.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "prometheus.yaml").write_text(example)
    promtool("check", "config", tmp_path / "prometheus.yaml")
