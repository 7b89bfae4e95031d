"""Prometheus metrics of the operator: this table is all of them, and its names and labels are stable."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

import kvloop
from kvloop.controller.cache import Cache

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The metrics, and the few ways in which they move. Also is the `QueueMetrics` of the queue."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.registry = CollectorRegistry()
        self._passes = Counter(
            "kvloop_reconcile",
            "Passes over a custom resource, by result: ok, retry, error.",
            ["result"],
            registry=self.registry,
        )
        self._pass_seconds = Histogram(
            "kvloop_reconcile_seconds", "Time of a pass.", buckets=_SECONDS, registry=self.registry
        )
        self._depth = Gauge("kvloop_queue_depth", "Custom resources that wait for a worker.", registry=self.registry)
        self._latency = Histogram(
            "kvloop_queue_latency_seconds", "Wait for a worker.", buckets=_SECONDS, registry=self.registry
        )
        self._retries = Counter("kvloop_queue_retries", "Passes planned after a failure.", registry=self.registry)
        self._requests = Counter(
            "kvloop_api_requests",
            "API requests, by verb, kind and HTTP status (0: no answer).",
            ["verb", "kind", "code"],
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "kvloop_api_request_seconds", "Time of an API request.", ["verb"], buckets=_SECONDS, registry=self.registry
        )
        self._scrapes = Counter(
            "kvloop_scrapes",
            "Reads of what pods count, by what was read (router, engine) and result: ok, error.",
            ["target", "result"],
            registry=self.registry,
        )
        self._canary = Gauge(
            "kvloop_canary_age_seconds",
            "Age of the newest write that the watch has brought back.",
            registry=self.registry,
        )
        build = Gauge("kvloop_build_info", "Version of the operator; always 1.", ["version"], registry=self.registry)
        build.labels(kvloop.__version__).set(1)
        self.registry.register(_Conditions(cache))

    def passed(self, result: str, seconds: float) -> None:
        """A pass ended."""
        self._passes.labels(result).inc()
        self._pass_seconds.observe(seconds)

    def requested(self, verb: str, kind: str, code: int, seconds: float) -> None:
        """An API request ended."""
        self._requests.labels(verb, kind, str(code)).inc()
        self._request_seconds.labels(verb).observe(seconds)

    def scraped(self, target: str, good: bool) -> None:
        """A router or an engine was read."""
        self._scrapes.labels(target, "ok" if good else "error").inc()

    def follow(self, canary_age: Callable[[], float]) -> None:
        """Read the canary's age, in seconds, whenever the metrics are asked for."""
        self._canary.set_function(canary_age)

    def depth(self, keys: int) -> None:
        """See `QueueMetrics`."""
        self._depth.set(keys)

    def waited(self, seconds: float) -> None:
        """See `QueueMetrics`."""
        self._latency.observe(seconds)

    def retried(self) -> None:
        """See `QueueMetrics`."""
        self._retries.inc()


class _Conditions(Collector):
    """The conditions of all custom resources, read when they are asked for."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """One gauge."""
        family = GaugeMetricFamily(
            "kvloop_resource_condition",
            "A condition of a custom resource, as its status has it; always 1.",
            labels=["namespace", "name", "condition", "status", "reason"],
        )
        for key in self._cache.resources():
            if entry := self._cache.resource(key):
                for each in entry.to_status().get("conditions") or ():
                    labels = (key.namespace, key.name, *(each.get(part, "") for part in ("type", "status", "reason")))
                    family.add_metric(labels, 1)
        yield family
