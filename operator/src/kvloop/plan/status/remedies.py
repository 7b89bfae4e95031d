"""What to do when follow-ups miss, by the reason that most of them have."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kvloop.api.contract import Miss
from kvloop.api.flags import EXPIRY_SINCE

_FABRIC: Final = (
    "Reads fail: prefill's log tells how. Let all traffic pass between the engines' pods (NetworkPolicies; the security"
    " group to itself, in and out)."
)
_VERSION: Final = f"the image must hold vLLM {EXPIRY_SINCE[0]}.{EXPIRY_SINCE[1]} or later."
_LEAVE: Final = "Decode engines restart or leave between turns: see their pods' restarts and logs."
_REMEDIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        Miss.NO_HANDLE: "Decode gives no handle: its vLLM runs without bidirectional_kv_xfer. See the arguments and the"
        f" log of decode's pods; {_VERSION}",
        Miss.GUARD_INACTIVE: "The guard does not run where it is needed: see the engines' logs.",
        Miss.STORE_UNAVAILABLE: "The routers' store does not answer: see that Valkey runs and that router.store.valkey"
        " has its URL and password.",
        Miss.TRANSFER_FAILED: _FABRIC,
        Miss.CIRCUIT_OPEN: _FABRIC,
        Miss.ENGINE_GONE: _LEAVE,
        Miss.ENGINE_DRAINING: _LEAVE,
        Miss.ENGINE_RESTARTED: _LEAVE,
        Miss.ENGINE_UNREACHABLE: _LEAVE,
        Miss.EXPIRED: "Raise transfer.decoderKVBlocksTTLSeconds above the pauses between turns.",
        Miss.LEASE_ENDED: "Raise router.leaseSeconds, or router.maxPinnedPercent.",
        Miss.EVICTED: "Raise router.store.memory.maxConversations.",
        Miss.BELOW_THRESHOLD: "Too little is left to read: lower transfer.kvRecomputeThresholdTokens if status.advice"
        " says so.",
        Miss.USED: "Turns are sent twice, or conversations branch: each handle serves one turn.",
        Miss.REVISION: "Handles are of another revision: a rollout is under way.",
        Miss.HOLDOUT: "Lower router.holdoutPercent.",
        Miss.ENDED: "Clients say that conversations end, and go on.",
        # Of the guard.
        "mismatch": "Histories differ from what decode holds: clients edit them, or the chat template drops parts of"
        " earlier replies.",
        "no_expiry": f"Handles do not tell when their lease ends, so they are not used: {_VERSION}",
    }
)
_OTHERWISE: Final = "status.reuse.misses counts the reasons, which the page on troubleshooting explains."


def remedy(misses: Mapping[str, int]) -> str:
    """Why most follow-ups miss, and what to do."""
    most = max(sorted(misses), key=misses.__getitem__, default="")
    if not most:
        return _OTHERWISE
    return f"Most misses are {most}. {_REMEDIES.get(most, _OTHERWISE)}"
