"""Prometheus metrics of the router."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvloop import __version__
from kvloop.api.contract import Miss
from kvloop.api.labels import Role
from kvloop.router.core import Core
from kvloop.router.outcome import Arm, Outcome
from kvloop.router.pool import Engine

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_GAP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_STORE_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
_PAUSE_SECONDS = (0.1, 0.3, 1.0, 3.0, 5.0, 10.0, 20.0, 45.0, 90.0, 180.0, 480.0, 1000.0, 3600.0, 14_400.0, 86_400.0)
_TASK_SECONDS = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0, 14_400.0, 86_400.0)
_KINDS = ("prompt", "offered", "verified", "reused")


class Metrics:
    """All metrics, in a registry of their own. Labels are words of ours, or engines' addresses: they are bounded."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        turns = self._counter("turns", "Turns, by how they ended.", "dialect", "arm", "code")
        tokens = self._counter(
            "prompt_tokens", "Prompt tokens of follow-ups: all, held by decode, found equal, reused.", "kind"
        )
        self._misses = self._counter("misses", "Follow-ups without reuse.", "reason")
        self._not_eligible = self._counter("not_eligible_turns", "Turns that cannot reuse.", "reason")
        self._decode_only = self._counter("decode_only_turns", "Turns that decode computed alone.", "reason")
        self._retries = self._counter("retries", "Legs beyond a turn's first two.")
        self._failed = self._counter("failed_transfers", "Prefill legs that failed with a handle.")
        first = self._histogram(
            "first_byte", "From a request's arrival to the first byte of its stream.", "arm", _SECONDS
        )
        prefill = self._histogram("prefill", "From a request's arrival to the end of its prefill leg.", "arm", _SECONDS)
        gap = self._histogram("gap", "Mean time between two pieces of a stream, once a stream.", "arm", _GAP_SECONDS)
        whole = self._histogram("turn", "From a request's arrival to the end of its answer.", "arm", _SECONDS)
        pause = "From decode's last byte to the conversation's next turn: what leases have to outlast."
        self._pause = self._histogram("pause", pause, "arm", _PAUSE_SECONDS)
        self._task = self._histogram(
            "task", "Conversations of two turns or more, from begin to end.", "arm", _TASK_SECONDS
        )
        self._time = self._counter("conversation_seconds", "Where the time of conversations goes.", "part")
        self._store = self._histogram("store", "Calls of the store's server.", "call", _STORE_SECONDS)
        # Children are looked up under a lock, so that is done once.
        self._turn = lru_cache(maxsize=1024)(turns.labels)
        self._tokens = [tokens.labels(kind) for kind in _KINDS]
        self._first, self._prefill, self._gap, self._whole = (
            {arm: histogram.labels(arm) for arm in Arm} for histogram in (first, prefill, gap, whole)
        )

    def follow(self, core: Core) -> None:
        """Tell the router's present state as well."""
        self.registry.register(_State(core))

    def observe(self, outcome: Outcome) -> None:
        """Count a turn that has ended."""
        arm = outcome.arm
        self._turn(outcome.dialect, arm, str(outcome.status)).inc()
        if outcome.not_eligible:
            self._not_eligible.labels(outcome.not_eligible).inc()
        elif outcome.follow_up and outcome.served:
            self._observe_follow_up(outcome)
        if outcome.decode_only and outcome.served:
            self._decode_only.labels(outcome.decode_only).inc()
        if outcome.retries:
            self._retries.inc(outcome.retries)
        if outcome.failed_transfer:
            self._failed.inc()
        if outcome.turn and outcome.served:
            self._observe_conversation(outcome, arm)
        self._observe_times(outcome, arm)

    def observe_store(self, call: str, seconds: float) -> None:
        """Count a call of the store; late and failed ones included."""
        self._store.labels(call).observe(seconds)

    def _observe_follow_up(self, outcome: Outcome) -> None:
        counts = (outcome.prompt_tokens, outcome.offered_tokens, outcome.verified_tokens, outcome.reused_tokens)
        for child, count in zip(self._tokens, counts, strict=True):
            child.inc(count)
        if not outcome.reused_tokens:
            self._misses.labels(outcome.miss or Miss.UNKNOWN).inc()

    def finished(self, arm: Arm, turns: int, seconds: float) -> None:
        """A conversation has ended, so many turns and seconds after it began."""
        if turns > 1:
            self._task.labels(arm).observe(seconds)

    def _observe_conversation(self, outcome: Outcome, arm: Arm) -> None:
        self._time.labels("first_token").inc(outcome.wait_seconds)
        self._time.labels("generation").inc(outcome.total_seconds - outcome.wait_seconds)
        if outcome.gap_seconds is not None:
            self._time.labels("gap").inc(outcome.gap_seconds)
            self._pause.labels(arm).observe(outcome.gap_seconds)

    def _observe_times(self, outcome: Outcome, arm: Arm) -> None:
        self._whole[arm].observe(outcome.total_seconds)
        if outcome.prefill_seconds is not None:
            self._prefill[arm].observe(outcome.prefill_seconds)
        if outcome.stream and outcome.first_byte_seconds is not None:
            self._first[arm].observe(outcome.first_byte_seconds)
            if outcome.pieces > 1 and outcome.last_byte_seconds:
                seconds = outcome.last_byte_seconds - outcome.first_byte_seconds
                self._gap[arm].observe(seconds / (outcome.pieces - 1))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"kvloop_router_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, label: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"kvloop_router_{name}_seconds", text, [label], buckets=buckets, registry=self.registry)


class _State(Collector):
    """Gauges that are read when they are asked for."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def collect(self) -> Iterable[Metric]:
        core = self._core
        yield _gauge("info", "Build of the router.", ["version"], [([__version__], 1)])
        yield _gauge("ready", "Whether new clients are welcome.", [], [([], core.ready)])
        yield _gauge("queued_turns", "Turns that wait for room on a decode engine.", [], [([], len(core.admission))])
        yield self._by_engine("engine_turns", "Turns bound to the engine.", lambda e: e.in_flight)
        yield self._by_engine("engine_usable", "Whether the engine may get new work.", lambda e: e.usable)
        if core.config.transfer.bidirectional:  # else it is not wanted, and its absence no fault
            yield self._by_engine("engine_guard_active", "Whether the guard runs in it.", lambda e: e.info.guard_active)
        decodes = [engine for engine in core.pool.all() if engine.role is Role.DECODE]
        pinned = [([each.address], core.leases.pinned(each.address)) for each in decodes]
        yield _gauge("pinned_tokens", "Tokens that decode holds for later turns.", ["engine"], pinned)
        room = [([each.address], each.info.capacity_tokens) for each in decodes if each.info.capacity_tokens]
        yield _gauge("capacity_tokens", "Tokens that decode's KV cache has room for.", ["engine"], room)
        ended = "Decode's leases that were ended before their time."
        yield CounterMetricFamily("kvloop_router_ended_leases", ended, value=core.leases.ended)

    def _by_engine(self, name: str, text: str, value: Callable[[Engine], float]) -> Metric:
        values = [([engine.role.value, engine.address], value(engine)) for engine in self._core.pool.all()]
        return _gauge(name, text, ["role", "engine"], values)


def _gauge(name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(f"kvloop_router_{name}", text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family
