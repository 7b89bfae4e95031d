"""KVTransferVerified: whether decode's KV really comes back to prefill, as the engines count it.

What routers count stands beside it: how many follow-ups there were, and why they missed, only they know. Whether KV
moved, who computed what and how quickly, the engines tell.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvloop.api.contract import Miss
from kvloop.api.instances import INSTANCE_TYPES
from kvloop.api.labels import Reason, Role
from kvloop.api.v1alpha1 import Spec
from kvloop.api.v1alpha1.status import ConditionStatus, ResolvedStatus
from kvloop.api.v1alpha1.transfer import Fabric
from kvloop.plan.measured import GUARD_ACTIVE, EngineCounters, Measured
from kvloop.plan.status.problem import names_of
from kvloop.plan.status.remedies import remedy

FEW: Final = 5
"""Fewer turns than this prove nothing: short ones may all be below the recompute threshold."""
TOLERATED_PERCENT: Final = 10
"""Share of turns that may go another way, as while an engine restarts, before it is a fault."""
ACCIDENTS: Final = 3
"""Fewer of these are no fault, however few turns there are: where traffic is low, each is more than the share."""
BELIEVED_PERCENT: Final = 50
"""Least share of what routers count as reused that prefill must have read or had in its own cache."""
LAST_TOKENS: Final = "20.0"
"""vLLM's bucket of requests for which so few prompt tokens were computed: decode always computes the last one."""
FAR_BELOW: Final = 0.03
"""Share of EFA's line rate below which something else carries the KV. Published runs reach 12 to 41 percent of it
(p5en, 16 EFA devices, 8 GPUs: 6 GB/s a GPU with many small blocks); TCP in its place was seen at 0.3 GB/s, which is 0.6
percent (https://github.com/ray-project/ray/pull/62339)."""
START_SECONDS: Final = 0.02
"""Of each transfer, not counted: its start takes 10 to 20 ms in published runs, however little is moved."""
EFA_GBPS: Final = 100
"""Line rate of one EFA device where the instance type is not known, in Gbit/s: that of p4d and p5."""


@dataclass(frozen=True)
class Verdict:
    """Status, reason and message of the condition. No counts in the message: it would change with every turn."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True)
class Case:
    """What a policy may look at."""

    spec: Spec
    resolved: ResolvedStatus
    seen: Measured


def _unknown(reason: Reason, message: str) -> Verdict:
    return Verdict(ConditionStatus.UNKNOWN, reason, message)


def _false(reason: Reason, message: str) -> Verdict:
    return Verdict(ConditionStatus.FALSE, reason, message)


_VERIFIED: Final = Verdict(ConditionStatus.TRUE, Reason.VERIFIED, "Prefill reads the KV of earlier turns from decode.")
_NO_TRAFFIC: Final = _unknown(Reason.NO_TRAFFIC, "Too few follow-ups in the window to tell.")
_DISABLED: Final = _false(Reason.DISABLED, "spec.transfer.bidirectional is false.")


def verdict(spec: Spec, resolved: ResolvedStatus, seen: Measured | None) -> Verdict:
    """The first policy that applies decides."""
    if not spec.transfer.bidirectional:
        return _DISABLED
    if seen is None:
        return _NO_TRAFFIC
    case = Case(spec, resolved, seen)
    found = (policy(case) for policy in _POLICIES)
    return next((each for each in found if each is not None), _VERIFIED)


def _guard_inactive(case: Case) -> Verdict | None:
    """Engines whose metrics say so, or say nothing of a guard."""
    engines = [engine for engine in case.seen.engines if engine.read]
    bad = [engine.pod for engine in engines if engine.guard != GUARD_ACTIVE]
    if not bad:
        return None
    return _false(
        Reason.GUARD_INACTIVE,
        f"The guard does not run in {len(bad)} of {len(engines)} engines: {names_of(bad)}. Nothing is reused there. The"
        " engine's log tells why at its start: the image must load vLLM plugins (VLLM_PLUGINS) and hold a vLLM version"
        " that kvloop supports.",
    )


def _decode_only(case: Case) -> Verdict | None:
    """Decode computed prompts, be it that routers gave it no KV or that it failed to read what they gave."""
    decode, beside = case.seen.decode, case.seen.beside
    computed = decode.requests - decode.computed_buckets.get(LAST_TOKENS, decode.requests)
    alone = max(beside.decode_only_turns, computed - beside.unsplit_turns)
    if beside.turns < FEW or not _exceeds(alone, beside.turns):
        return None
    if not case.seen.of(Role.PREFILL):
        what = "Scale prefill up, or look at prefill's pods."
        return _false(Reason.DECODE_ONLY, f"No prefill engine is ready, so that decode computes every prompt. {what}")
    return _false(
        Reason.DECODE_ONLY,
        "Decode computes prompts itself, since prefill gives it no KV or it cannot read it. Look at prefill's pods and"
        " logs, at decode's log for failed transfers, and at the router's log for decodeOnly, which says why.",
    )


def _unreadable(case: Case) -> Verdict | None:
    """One read engine that has fetched is proof; that none has, only all of them can tell."""
    if case.seen.prefill.fetched_tokens or case.seen.beside.follow_ups < FEW or _all_read(case):
        return None
    return _unknown(
        Reason.METRICS_UNREADABLE,
        "The operator cannot read /metrics of all prefill engines (port 8000), and those that it can read have fetched"
        " nothing, so that nothing is proven. A network policy or security group must let the operator's pod in.",
    )


def _all_read(case: Case) -> bool:
    prefill = case.seen.of(Role.PREFILL)
    return bool(prefill) and all(engine.read for engine in prefill)


def _no_traffic(case: Case) -> Verdict | None:
    return _NO_TRAFFIC if case.seen.beside.follow_ups < FEW else None


def _expiring(case: Case) -> Verdict | None:
    """Too late by the router's clock, which is ahead of decode's, or by decode's own."""
    beside, transfer = case.seen.beside, case.spec.transfer
    late = beside.expired_handles + beside.misses.get(Miss.LEASE_ENDED, 0) + case.seen.decode.late_reads
    if not _exceeds(late, beside.follow_ups):
        return None
    lease = case.spec.router.lease_seconds
    shorter = f" and router.leaseSeconds, now {lease}," if lease else ""
    return _false(
        Reason.EXPIRING,
        f"More than {TOLERATED_PERCENT}% of follow-ups come after decode has let go of their KV. Raise"
        f" transfer.decoderKVBlocksTTLSeconds, now {transfer.decoder_kv_blocks_ttl_seconds},{shorter} above the pauses"
        " between turns, or router.maxPinnedPercent if that ends leases early. status.advice says how far.",
    )


def _expiring_on_prefill(case: Case) -> Verdict | None:
    """Prefill's own leases: each lease of decode that a router ends costs one, which nobody reads."""
    unread = case.seen.prefill.expired - case.seen.beside.ended_leases
    if not _exceeds(unread, case.seen.beside.turns):
        return None
    return _false(
        Reason.EXPIRING,
        f"More than {TOLERATED_PERCENT}% of turns wait for decode until prefill has let go of their KV, or prefill"
        " declines to read KV whose lease ends. Raise transfer.kvLeaseDurationSeconds, now"
        f" {case.spec.transfer.kv_lease_duration_seconds}, or add decode engines.",
    )


def _no_transfers(case: Case) -> Verdict | None:
    """Nothing was read; or far less than the routers believe."""
    prefill, beside = case.seen.prefill, case.seen.beside
    held = prefill.fetched_tokens + prefill.cached_tokens
    if not prefill.fetched_tokens:
        if beside.reused_tokens and 100 * held >= BELIEVED_PERCENT * beside.reused_tokens:
            message = "Prefill finds follow-ups in its own prefix cache, so that nothing has to come back from decode."
            return _unknown(Reason.NO_TRAFFIC, message)
        return _false(Reason.NO_TRANSFERS, f"Prefill reads no follow-up's KV from decode. {remedy(beside.misses)}")
    if _all_read(case) and 100 * held < BELIEVED_PERCENT * beside.reused_tokens:
        return _false(
            Reason.NO_TRANSFERS,
            "Prefill computes most of what the routers count as reused. Its log tells of reads that failed; is"
            " kv_recompute_threshold of the engines the one in spec.transfer?",
        )
    return None


def _transport_fallback(case: Case) -> Verdict | None:
    """Far below what EFA gives, over all transfers of the window."""
    if case.spec.transfer.fabric is not Fabric.EFA:
        return None
    for role, counted in ((Role.PREFILL, case.seen.prefill), (Role.DECODE, case.seen.decode)):
        rate, line = _rate(counted), _line_rate(case, role)
        if rate and rate < FAR_BELOW * line:
            return _false(
                Reason.TRANSPORT_FALLBACK,
                f"KV moves to {role} at less than {FAR_BELOW:.0%} of EFA's line rate of {line / 1e9:.0f} GB/s for one"
                " accelerator, as over TCP. NIXL's log (NIXL_LOG_LEVEL=INFO) must say that backend LIBFABRIC was"
                " instantiated, and fi_info -p efa must list devices in the pod: the image needs libfabric with EFA,"
                " and the security group must let all traffic pass to itself.",
            )
    return None


def _rate(counted: EngineCounters) -> float:
    """Bytes per second of one accelerator's transfers beyond their start; 0 where they are too few or too short."""
    seconds = counted.transfer_seconds - START_SECONDS * counted.transfers
    return counted.transfer_bytes / seconds if seconds > 0 and counted.transfers >= FEW else 0.0


def _line_rate(case: Case, role: Role) -> float:
    """Bytes per second that EFA could give one accelerator of a pod."""
    kind = INSTANCE_TYPES.get(case.spec.placement.instance_type or "")
    of_one = kind.efa_gbps / kind.efa if kind and kind.efa else EFA_GBPS
    devices = case.resolved.efa_devices_per_pod.get(role, 1)
    return devices * of_one * 1e9 / 8 / max(1, case.resolved.gpus_per_pod.get(role, 1))


def _exceeds(part: float, whole: float) -> bool:
    return part >= ACCIDENTS and 100 * part > TOLERATED_PERCENT * whole


_POLICIES: Final[tuple[Callable[[Case], Verdict | None], ...]] = (
    _guard_inactive,
    _decode_only,
    _unreadable,
    _no_traffic,
    _expiring,
    _expiring_on_prefill,
    _no_transfers,
    _transport_fallback,
)
