"""Why a follow-up reused nothing: the router's own words. The guard has more: `kvloop.engine.guard.Reason`."""

from enum import StrEnum


class Miss(StrEnum):
    """One word each, as in the router's metrics, its log and `status.reuse.misses`."""

    # The handle is not there.
    USED = "used"
    EXPIRED = "expired"
    LEASE_ENDED = "lease_ended"
    EVICTED = "evicted"
    STORE_UNAVAILABLE = "store_unavailable"
    # The turn before left none.
    NO_HANDLE = "no_handle"
    BAD_HANDLE = "bad_handle"
    NOT_ELIGIBLE = "not_eligible"
    ENDED = "ended"
    # It is not to be used.
    HOLDOUT = "holdout"
    DISABLED = "disabled"
    GUARD_INACTIVE = "guard_inactive"
    REVISION = "revision"
    CIRCUIT_OPEN = "circuit_open"
    # The engine that holds the KV.
    ENGINE_GONE = "engine_gone"
    ENGINE_DRAINING = "engine_draining"
    ENGINE_RESTARTED = "engine_restarted"
    ENGINE_UNREACHABLE = "engine_unreachable"
    # It was used.
    TRANSFER_FAILED = "transfer_failed"
    BELOW_THRESHOLD = "below_threshold"
    NOT_VERIFIED = "not_verified"
    """The guard verified nothing, and gave no reason."""
    UNKNOWN = "unknown"
    """None of these: prefill gave no KV for the turn, so that nobody knows."""
