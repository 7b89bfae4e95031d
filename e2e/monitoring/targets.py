"""The labels that a PodMonitor gives to what it reads from a pod, as the Prometheus operator makes them."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
_DEMO: Final = ROOT / "operator" / "tests" / "cases" / "demo" / "out"
_CHART: Final = ROOT / "e2e" / "charts" / "cases" / "everything" / "out.yaml"
_WORKLOADS: Final = {"Deployment", "StatefulSet"}

Body = dict[str, Any]


def demo(component: str, number: int = 0) -> dict[str, str]:
    """Labels of the series of a pod of the sample `demo`: prefill, decode or router."""
    monitor, kind = ("router", "deployment") if component == "router" else ("engines", "statefulset")
    return labels(_demo(f"podmonitor-demo-{monitor}"), _demo(f"{kind}-demo-{component}"), number)


def operator() -> dict[str, str]:
    """Labels of the operator's series, as the chart's PodMonitor reads them."""
    objects = [body for body in yaml.safe_load_all(_CHART.read_text()) if body]
    (monitor,) = (body for body in objects if body["kind"] == "PodMonitor")
    (workload,) = (body for body in objects if body["kind"] in _WORKLOADS)
    return labels(monitor, workload)


def labels(monitor: Body, workload: Body, number: int = 0) -> dict[str, str]:
    """Labels of the series of one pod.

    Raises:
        ValueError: the monitor does not select the pod, or no container has its port.
    """
    spec, template = monitor["spec"], workload["spec"]["template"]
    found, name = template["metadata"]["labels"], workload["metadata"]["name"]
    if not _selects(spec["selector"], found):
        raise ValueError(f"PodMonitor {monitor['metadata']['name']} does not select the pods of {name}")
    (endpoint,) = spec["podMetricsEndpoints"]
    containers = [
        each["name"]
        for each in template["spec"]["containers"]
        if endpoint["port"] in {port["name"] for port in each.get("ports", ())}
    ]
    if not containers:
        raise ValueError(f"no container of {name} has a port {endpoint['port']}")
    namespace = workload["metadata"]["namespace"]
    own = {_sanitized(key): found[key] for key in spec.get("podTargetLabels", ())}
    return own | {
        "namespace": namespace,
        "pod": f"{name}-{number}",
        "container": containers[0],
        "endpoint": endpoint["port"],
        "job": f"{namespace}/{monitor['metadata']['name']}",
    }


def _selects(selector: Body, found: dict[str, str]) -> bool:
    exist = [each["key"] for each in selector.get("matchExpressions", ()) if each["operator"] == "Exists"]
    return selector.get("matchLabels", {}).items() <= found.items() and found.keys() >= set(exist)


def _sanitized(key: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)


def _demo(name: str) -> Body:
    body: Body = yaml.safe_load((_DEMO / f"{name}.yaml").read_text())
    return body
