"""What to do when follow-ups miss, by the reason that most of them have."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kvloop.api.flags import EXPIRY_SINCE

_FABRIC: Final = (
    "Reads fail: prefill's log tells how. Let all traffic pass between the engines' pods (NetworkPolicies; the security"
    " group to itself, in and out)."
)
_VERSION: Final = f"the image must hold vLLM {EXPIRY_SINCE[0]}.{EXPIRY_SINCE[1]} or later."
_LEAVE: Final = "Decode engines restart or leave between turns: see their pods' restarts and logs."
_REMEDIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "no_handle": "Decode gives no handle: its vLLM runs without bidirectional_kv_xfer. See the arguments and the"
        f" log of decode's pods; {_VERSION}",
        "guard_inactive": "The guard does not run where it is needed: see the engines' logs.",
        "no_expiry": f"Handles do not tell when their lease ends, so they are not used: {_VERSION}",
        "store_unavailable": "The routers' store does not answer: see that Valkey runs and that router.store.valkey has"
        " its URL and password.",
        "transfer_failed": _FABRIC,
        "circuit_open": _FABRIC,
        "engine_gone": _LEAVE,
        "engine_draining": _LEAVE,
        "engine_restarted": _LEAVE,
        "engine_unreachable": _LEAVE,
        "expired": "Raise transfer.decoderKVBlocksTTLSeconds above the pauses between turns.",
        "lease_ended": "Raise router.leaseSeconds, or router.maxPinnedPercent.",
        "evicted": "Raise router.store.memory.maxConversations.",
        "below_threshold": "Too little is left to read: lower transfer.kvRecomputeThresholdTokens if status.advice says"
        " so.",
        "mismatch": "Histories differ from what decode holds: clients edit them, or the chat template drops parts of"
        " earlier replies.",
        "used": "Turns are sent twice, or conversations branch: each handle serves one turn.",
        "revision": "Handles are of another revision: a rollout is under way.",
        "holdout": "Lower router.holdoutPercent.",
        "ended": "Clients say that conversations end, and go on.",
    }
)
_OTHERWISE: Final = "status.reuse.misses counts the reasons, which the router's documentation explains."


def remedy(misses: Mapping[str, int]) -> str:
    """Why most follow-ups miss, and what to do."""
    most = max(sorted(misses), key=misses.__getitem__, default="")
    if not most:
        return _OTHERWISE
    return f"Most misses are {most}. {_REMEDIES.get(most, _OTHERWISE)}"
