"""`status.reuse` and `status.advice`: what came back, what that was worth, and what to set.

Integers and strings only, rounded: three significant digits, so that it changes seldom.
"""

from typing import Annotated

from pydantic import Field

from kvloop.api.v1alpha1.base import Model, list_map

Percent = Annotated[str, Field(max_length=8, pattern=r"^([0-9]+%|)$")]
Factor = Annotated[str, Field(max_length=16, pattern=r"^([0-9.]+x|)$")]
Told = Annotated[str, Field(max_length=1024)]


class CountedReason(Model):
    """How often something happened, by reason."""

    reason: str = Field(max_length=64, description="Short word, as in the router's metrics.")
    count: int = Field(description="Turns.")


class Comparison(Model):
    """Times with reuse against times without, for turns or tasks of like length."""

    against: str = Field("", max_length=32, description="What reuse is compared with: holdout, or recomputed.")
    faster: Factor = Field("", description="Typical time without reuse per time with it; 1x means no difference.")
    low: Factor = Field("", description="The true value is above this with 97.5 percent confidence.")
    high: Factor = Field("", description="And below this.")
    message: Told = Field("", description="In words; also why nothing can be told yet.")


class FirstTokenStatus(Model):
    """Time to the first token of one kind of turn, in milliseconds."""

    turns: int = Field(0, description="Turns measured.")
    p50_milliseconds: int = Field(0, description="Median.")
    p95_milliseconds: int = Field(0, description="95th percentile.")


class FirstTokensStatus(Model):
    """Time to the first token by kind of turn, as if all kinds had prompts of the lengths that reused turns have."""

    reused: FirstTokenStatus | None = Field(None, description="Follow-ups whose KV came back from decode.")
    recomputed: FirstTokenStatus | None = Field(None, description="Follow-ups that prefill computed.")
    holdout: FirstTokenStatus | None = Field(None, description="Follow-ups of conversations that never reuse.")
    comparison: Comparison = Field(
        default_factory=Comparison,
        description="Turns that may reuse against those of the holdout, or reused against recomputed ones.",
    )


class SavedStatus(Model):
    """What prefill was spared, by the engines' own counters."""

    tokens: int = Field(0, description="Prompt tokens that prefill read from decode instead of computing them.")
    prefill_seconds: int | None = Field(
        None, description="Time that computing them would have taken, less that of reading them; absent while unknown."
    )
    cached_tokens: int = Field(0, description="Prompt tokens that prefill found in its own prefix cache.")


class TransferStatus(Model):
    """Reads of decode's KV by prefill, by the engines' own counters."""

    transfers: int = Field(0, description="Reads: what vLLM counts, divided by prefill's tensor parallel size.")
    p95_milliseconds: int = Field(0, description="95th percentile of their time.")
    megabytes_per_second: int = Field(0, description="Megabytes moved per second of transfer, for one accelerator.")
    failures: int = Field(0, description="Reads that failed, on prefill or decode; counted likewise, rounded up.")
    expiries: int = Field(
        0, description="Leases that ended unused on decode, and reads that prefill declined for it; counted likewise."
    )


class DecodeCacheStatus(Model):
    """Decode's KV cache now, all engines together."""

    pinned_percent: Percent = Field("", description="Held for later turns.")
    used_percent: Percent = Field("", description="Held for later turns or by running ones.")


class TaskTimeStatus(Model):
    """Whole conversations of two turns or more, from the first turn's arrival to the last turn's end."""

    tasks: int = Field(0, description="Conversations that have ended.")
    p50_seconds: int = Field(0, description="Median.")


class TasksStatus(Model):
    """Whole conversations, those that may reuse against those that never do."""

    reused: TaskTimeStatus | None = Field(None, description="Conversations that may reuse.")
    holdout: TaskTimeStatus | None = Field(None, description="Conversations that never reuse.")
    comparison: Comparison = Field(default_factory=Comparison, description="At like numbers of turns.")


class TimeStatus(Model):
    """Where the time of conversations goes."""

    conversations: int = Field(0, description="Conversations begun.")
    first_token_percent: Percent = Field("", description="Waiting for first tokens.")
    generation_percent: Percent = Field("", description="Generating.")
    gap_percent: Percent = Field("", description="Between turns: tools, people.")
    tasks: TasksStatus | None = Field(None, description="Whole conversations; ended ones only.")


class ReuseStatus(Model):
    """How much KV came back, over the operator's window. Counts have three significant digits."""

    updated_at: str | None = Field(
        None, description="When these numbers last changed.", json_schema_extra={"format": "date-time"}
    )
    window_seconds: int = Field(0, description="Length of the window.")
    turns: int = Field(0, description="Turns in the window.")
    follow_ups: int = Field(0, description="Turns that continued a conversation.")
    reused_turns: int = Field(0, description="Follow-ups whose KV came back, wholly or in part.")
    hit_percent: Percent = Field("", description="Reused tokens per prompt token of follow-ups.")
    reused_tokens: int = Field(
        0, description="Prompt tokens of follow-ups that were found equal to what decode holds, and not computed."
    )
    recomputed_tokens: int = Field(0, description="Prompt tokens of follow-ups that prefill computed.")
    misses: list[CountedReason] = Field(
        default_factory=list, description="Follow-ups without reuse, by reason.", json_schema_extra=list_map("reason")
    )
    not_eligible: list[CountedReason] = Field(
        default_factory=list, description="Turns that cannot reuse, by reason.", json_schema_extra=list_map("reason")
    )
    first_token: FirstTokensStatus | None = Field(None, description="Time to the first token.")
    saved: SavedStatus | None = Field(None, description="What prefill was spared.")
    transfer: TransferStatus | None = Field(None, description="Reads of decode's KV by prefill.")
    decode_cache: DecodeCacheStatus | None = Field(None, description="Decode's KV cache.")
    time: TimeStatus | None = Field(None, description="Where the time of conversations goes.")


class Recommendation(Model):
    """A value for a setting, and why."""

    value: int | None = Field(
        None,
        description="What to set, or what is in force if that is as good; absent where it cannot be told or none pays.",
    )
    reason: Told = Field("", description="In words.")
    confident: bool = Field(False, description="Whether there are enough measurements to act upon.")


class Verdict(Model):
    """Whether reuse pays at all."""

    reuse: bool | None = Field(None, description="Absent where it cannot be told.")
    reason: Told = Field("", description="In words.")
    confident: bool = Field(False, description="Whether there are enough measurements to act upon.")


class AdviceStatus(Model):
    """What to set, from this system's own traffic; never applied by itself."""

    updated_at: str | None = Field(
        None, description="When this last changed.", json_schema_extra={"format": "date-time"}
    )
    lease_seconds: Recommendation = Field(
        default_factory=Recommendation, description="For router.leaseSeconds, and the TTL, which must be 10 s longer."
    )
    threshold_tokens: Recommendation = Field(
        default_factory=Recommendation, description="For transfer.kvRecomputeThresholdTokens."
    )
    holdout_percent: Recommendation = Field(default_factory=Recommendation, description="For router.holdoutPercent.")
    verdict: Verdict = Field(default_factory=Verdict, description="Whether reuse pays: transfer.bidirectional.")
