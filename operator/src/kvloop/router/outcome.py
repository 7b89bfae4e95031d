"""What became of one turn: filled while it runs, then counted, measured and logged."""

from dataclasses import dataclass
from enum import StrEnum

CLIENT_LEFT = 499
"""The client hung up before its answer began: nginx's status for it."""


class Arm(StrEnum):
    """Which of the compared groups a turn belongs to."""

    FIRST = "first"
    """No earlier turn is known."""
    REUSED = "reused"
    RECOMPUTED = "recomputed"
    HOLDOUT = "holdout"
    NOT_ELIGIBLE = "not_eligible"


@dataclass(slots=True)
class Outcome:
    """One turn. Times are in seconds, from the arrival of the request."""

    dialect: str = ""
    stream: bool = False
    status: int = 0
    """HTTP status sent to the client, or `CLIENT_LEFT`; 502 also where a stream broke off."""
    follow_up: bool = False
    holdout: bool = False
    not_eligible: str = ""
    """Why the turn can take no part in reuse."""
    unsplit: bool = False
    """Decode computes it alone by its nature."""
    turn: int = 0
    """Number in its conversation, from 1; 0 where it belongs to none."""
    ends: bool = False
    """The client says that no turn will follow."""
    gap_seconds: float | None = None
    """From the last byte of the conversation's turn before to the arrival of this one; None where that is unknown."""
    miss: str = ""
    """Why a follow-up reused nothing."""
    prompt_tokens: int = 0
    offered_tokens: int = 0
    verified_tokens: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    """What prefill computed of the prompt."""
    pinned_tokens: int = 0
    """Tokens that decode was left to hold for the next turn."""
    held_seconds: float | None = None
    """How long decode had held this turn's history, where this router knows."""
    decode_only: str = ""
    """Why decode computed the prompt alone, though the turn is eligible."""
    failed_transfer: bool = False
    retries: int = 0
    prefill: str = ""
    decode: str = ""
    """Addresses of the engines that served it."""
    prefill_seconds: float | None = None
    leg_seconds: float | None = None
    """Length of the prefill leg that was good; not from the arrival."""
    first_byte_seconds: float | None = None
    pieces: int = 0
    """Reads that brought data of the stream; a token each, where they do not come in bursts."""
    last_byte_seconds: float = 0.0
    total_seconds: float = 0.0

    @property
    def served(self) -> bool:
        """Whether the turn was answered, or would have been but for its client."""
        return self.status < 400 or self.status == CLIENT_LEFT

    @property
    def wait_seconds(self) -> float:
        """Until the first token: its first byte in a stream, else the end of prefill, which samples it."""
        seconds = self.first_byte_seconds if self.stream else self.prefill_seconds or 0.0
        return self.total_seconds if seconds is None else min(seconds, self.total_seconds)

    @property
    def arm(self) -> Arm:
        if self.not_eligible:
            return Arm.NOT_ELIGIBLE
        if not self.follow_up:
            return Arm.FIRST
        if self.holdout:
            return Arm.HOLDOUT
        return Arm.REUSED if self.reused_tokens else Arm.RECOMPUTED
