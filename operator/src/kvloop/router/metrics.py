"""Prometheus metrics of the router."""

from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvloop import __version__
from kvloop.router.outcome import Arm, Outcome

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """All metrics, in a registry of their own. Labels are words of ours, so their number is bounded."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        Gauge("kvloop_router_info", "Build of the router.", ["version"], registry=registry).labels(__version__).set(1)
        self._turns = Counter("kvloop_router_turns", "Turns served.", ["dialect", "arm", "code"], registry=registry)
        self._misses = Counter(
            "kvloop_router_misses", "Follow-ups without reuse, by reason.", ["reason"], registry=registry
        )
        self._not_eligible = Counter(
            "kvloop_router_not_eligible_turns", "Turns that cannot reuse, by reason.", ["reason"], registry=registry
        )
        self._tokens = Counter(
            "kvloop_router_prompt_tokens",
            "Prompt tokens of follow-ups: all, offered by decode, verified by prefill's guard, reused.",
            ["kind"],
            registry=registry,
        )
        self._decode_only = Counter(
            "kvloop_router_decode_only_turns",
            "Turns that decode computed alone, by reason.",
            ["reason"],
            registry=registry,
        )
        self._retries = Counter("kvloop_router_retries", "Legs beyond a turn's first two.", registry=registry)
        self._failed = Counter("kvloop_router_failed_transfers", "Legs that failed with a handle.", registry=registry)
        self._first = Histogram(
            "kvloop_router_first_byte_seconds",
            "From a request's arrival to the first byte of its stream.",
            ["arm"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._prefill = Histogram(
            "kvloop_router_prefill_seconds",
            "From a request's arrival to the end of its prefill leg.",
            ["arm"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._store = Histogram(
            "kvloop_router_store_seconds",
            "Calls of the store's server, late and failed ones included.",
            ["call"],
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5),
            registry=registry,
        )
        self._turn = lru_cache(maxsize=256)(self._label_turn)  # children are looked up under a lock
        self._tokens_by_kind = [self._tokens.labels(kind) for kind in ("prompt", "offered", "verified", "reused")]
        self._first_by_arm = {arm: self._first.labels(arm) for arm in Arm}
        self._prefill_by_arm = {arm: self._prefill.labels(arm) for arm in Arm}

    def observe_store(self, call: str, seconds: float) -> None:
        """Count a call of the store."""
        self._store.labels(call).observe(seconds)

    def observe(self, outcome: Outcome) -> None:
        """Count a turn that has ended."""
        arm = outcome.arm
        self._turn(outcome.dialect, arm, outcome.status).inc()
        if outcome.not_eligible:
            self._not_eligible.labels(outcome.not_eligible).inc()
        elif outcome.follow_up:
            self._observe_follow_up(outcome)
        if outcome.decode_only:
            self._decode_only.labels(outcome.decode_only).inc()
        if outcome.retries:
            self._retries.inc(outcome.retries)
        if outcome.failed_transfer:
            self._failed.inc()
        if outcome.prefill_seconds is not None:
            self._prefill_by_arm[arm].observe(outcome.prefill_seconds)
        if outcome.stream and outcome.first_byte_seconds is not None:
            self._first_by_arm[arm].observe(outcome.first_byte_seconds)

    def _observe_follow_up(self, outcome: Outcome) -> None:
        prompt, offered, verified, reused = self._tokens_by_kind
        prompt.inc(outcome.prompt_tokens)
        offered.inc(outcome.offered_tokens)
        verified.inc(outcome.verified_tokens)
        reused.inc(outcome.reused_tokens)
        if not outcome.reused_tokens:
            self._misses.labels(outcome.miss or "unknown").inc()

    def _label_turn(self, dialect: str, arm: Arm, status: int) -> Counter:
        return self._turns.labels(dialect, arm, str(status))
