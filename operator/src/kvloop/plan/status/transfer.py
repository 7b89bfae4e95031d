"""KVTransferVerified: whether decode's KV really comes back to prefill, from what the routers count."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kvloop.api.contract import ReuseSummary
from kvloop.api.labels import Reason
from kvloop.api.v1alpha1 import Spec
from kvloop.api.v1alpha1.status import ConditionStatus

FEW_FOLLOW_UPS: Final = 5
"""Fewer follow-ups than this prove nothing: short ones may all be below the recompute threshold."""
TOLERATED_PERCENT: Final = 10
"""Share of turns that may go another way, as while an engine restarts, before it is a fault."""


@dataclass(frozen=True)
class Verdict:
    """Status, reason and message of the condition. No counts in the message: it would change with every turn."""

    status: ConditionStatus
    reason: Reason
    message: str


_VERIFIED: Final = Verdict(ConditionStatus.TRUE, Reason.VERIFIED, "Prefill reads the KV of earlier turns from decode.")
_NO_TRAFFIC: Final = Verdict(
    ConditionStatus.UNKNOWN, Reason.NO_TRAFFIC, "Too few follow-ups in the routers' window to tell."
)
_DISABLED: Final = Verdict(ConditionStatus.FALSE, Reason.DISABLED, "spec.transfer.bidirectional is false.")


def verdict(spec: Spec, reuse: ReuseSummary | None) -> Verdict:
    """The first policy that applies decides."""
    if not spec.transfer.bidirectional:
        return _DISABLED
    if reuse is None:
        return _NO_TRAFFIC
    found = (policy(spec, reuse) for policy in _POLICIES)
    return next((each for each in found if each is not None), _VERIFIED)


def _guard_inactive(_: Spec, reuse: ReuseSummary) -> Verdict | None:
    """Engines whose metrics say so, or say nothing of a guard."""
    bad = [
        each for each in reuse.engines if each.probed and each.healthy and not each.draining and not each.guard_active
    ]
    if not bad:
        return None
    return Verdict(
        ConditionStatus.FALSE,
        Reason.GUARD_INACTIVE,
        f"The guard does not run in {len(bad)} of {len(reuse.engines)} engines, such as the {bad[0].role} engine at"
        f" {bad[0].address}, so that nothing is reused there. Its log tells why: the image must load vLLM plugins"
        " (VLLM_PLUGINS) and hold a vLLM version that kvloop supports.",
    )


def _decode_only(_: Spec, reuse: ReuseSummary) -> Verdict | None:
    if not _exceeds(reuse.window.decode_only_turns, reuse.window.turns):
        return None
    return Verdict(
        ConditionStatus.FALSE,
        Reason.DECODE_ONLY,
        "Decode computes prompts itself, since prefill gives it no KV. Look at prefill's pods and logs, and at the"
        " router's log for why prefill was not used.",
    )


def _no_traffic(_: Spec, reuse: ReuseSummary) -> Verdict | None:
    return _NO_TRAFFIC if reuse.window.follow_ups < FEW_FOLLOW_UPS else None


def _expiring(spec: Spec, reuse: ReuseSummary) -> Verdict | None:
    if not _exceeds(reuse.window.expired_handles, reuse.window.follow_ups):
        return None
    return Verdict(
        ConditionStatus.FALSE,
        Reason.EXPIRING,
        f"More than {TOLERATED_PERCENT}% of follow-ups come after decode has let go of their KV. Raise"
        f" transfer.decoderKVBlocksTTLSeconds, now {spec.transfer.decoder_kv_blocks_ttl_seconds}, above the pauses"
        " between turns.",
    )


def _no_transfers(_: Spec, reuse: ReuseSummary) -> Verdict | None:
    if reuse.window.reused_turns:
        return None
    return Verdict(
        ConditionStatus.FALSE,
        Reason.NO_TRANSFERS,
        f"No follow-up reads its KV from decode{_mostly(reuse.window.misses)}. status.reuse.misses counts the reasons.",
    )


def _mostly(misses: Mapping[str, int]) -> str:
    most = max(sorted(misses), key=misses.__getitem__, default=None)
    return f", mostly because of {most}" if most else ""


def _exceeds(part: int, whole: int) -> bool:
    return 100 * part > TOLERATED_PERCENT * whole


_POLICIES: Final[tuple[Callable[[Spec, ReuseSummary], Verdict | None], ...]] = (
    _guard_inactive,
    _decode_only,
    _no_traffic,
    _expiring,
    _no_transfers,
)
