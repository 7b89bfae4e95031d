"""The body of `GET /reuse` on a router's admin port: what the router counts, and how it sees the engines.

The operator adds up the counters of all routers, and makes its windows of them: counters survive what a window does
not. Histograms are those of `kvloop.api.histogram`.
"""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from kvloop.api import histogram
from kvloop.api.histogram import Histogram
from kvloop.api.labels import Role

VERSION: Final = 2
"""2 has histograms, legs, gaps, time and leases, and the uid."""

# The bounds are far beyond what can be counted: they keep whatever answers in a router's place from filling the
# operator's memory, and its sums from overflowing.
Count = Annotated[int, Field(ge=0, le=10**15)]
Sum = Annotated[float, Field(ge=0, le=1e18)]
Bucket = Annotated[int, Field(ge=0, le=200)]
Word = Annotated[str, Field(max_length=64)]
"""A reason, or an arm of a comparison."""
_MOST_REASONS: Final = 64
_MOST_ARMS: Final = 8


class Answer(BaseModel):
    """A part of the summary: open, so that an older operator reads a newer router."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class Legs(Answer):
    """Prefill legs of like length: their sums, from which lines are fitted."""

    count: Count = Field(0, description="Legs.")
    computed_tokens: Count = Field(0, description="Prompt tokens that prefill computed.")
    fetched_tokens: Count = Field(0, description="Prompt tokens that it read from decode.")
    seconds: Sum = Field(0, description="From sending the leg to its whole answer, in seconds.")


class TimeBudget(Answer):
    """Where the time of conversations goes, in seconds; turns that belong to a conversation are counted."""

    first_token_seconds: Sum = Field(0, description="From a turn's arrival to its first token, in seconds.")
    generation_seconds: Sum = Field(0, description="From the first token to the last, in seconds.")
    gap_seconds: Sum = Field(0, description="From a turn's last token to the next turn: tools, people; in seconds.")


class ReuseCounters(Answer):
    """Turns, tokens and times. A follow-up is a turn whose history, or explicit conversation id, was seen before."""

    turns: Count = Field(0, description="Turns served, follow-ups or not.")
    follow_ups: Count = Field(0, description="Turns that extend an earlier one.")
    reused_turns: Count = Field(0, description="Follow-ups for which prefill read decode's KV.")
    prompt_tokens: Count = Field(0, description="Prompt tokens of follow-ups, as prefill reports them.")
    offered_tokens: Count = Field(0, description="Tokens that decode held for follow-ups.")
    verified_tokens: Count = Field(0, description="Tokens that prefill's guard found equal.")
    reused_tokens: Count = Field(0, description="Verified tokens, where they reach the recompute threshold.")
    recomputed_tokens: Count = Field(0, description="promptTokens - reusedTokens.")
    decode_only_turns: Count = Field(0, description="Turns that decode computed alone, for want of prefill.")
    unsplit_turns: Count = Field(0, description="Turns that decode computes alone by their nature, such as n > 1.")
    failed_transfers: Count = Field(0, description="Prefill legs that failed with a handle.")
    expired_handles: Count = Field(0, description="Follow-ups that came after the lease.")
    misses: dict[Word, Count] = Field(
        default_factory=dict, max_length=_MOST_REASONS, description="Follow-ups without reuse, by reason."
    )
    not_eligible: dict[Word, Count] = Field(
        default_factory=dict, max_length=_MOST_REASONS, description="Turns that cannot reuse, by reason."
    )
    first_token: dict[Word, dict[Bucket, Histogram]] = Field(
        default_factory=dict,
        max_length=_MOST_ARMS,
        description="Seconds to the first byte of follow-ups' streams: by arm (reused, recomputed, holdout), then by"
        " octave of the prompt's length (11: 2048 to 4095 tokens).",
    )
    gaps: Histogram = Field(
        default_factory=dict,
        description="Seconds from decode's last byte to the conversation's next turn, also where that came too late.",
    )
    closed_turns: Count = Field(0, description="Turns of which the client said that none will follow.")
    pinned_turns: Count = Field(0, description="Turns whose KV decode was left to hold.")
    pinned_tokens: Count = Field(0, description="Tokens of these.")
    ended_leases: Count = Field(0, description="Leases that the router ended before their time.")
    pinned_token_seconds: Sum = Field(0, description="Tokens held, each times the seconds for which it was.")
    prefill_legs: dict[Bucket, Legs] = Field(
        default_factory=dict, description="Legs that read nothing, by bucket of their computed tokens."
    )
    fetch_legs: dict[Bucket, Legs] = Field(
        default_factory=dict, description="Legs that read from decode, by bucket of their fetched tokens."
    )
    time: TimeBudget = Field(default_factory=TimeBudget, description="Where the time of conversations goes.")
    conversations: Count = Field(0, description="Conversations begun.")
    continued_conversations: Count = Field(0, description="Conversations that came to a second turn.")
    tasks: dict[Word, dict[Bucket, Histogram]] = Field(
        default_factory=dict,
        max_length=_MOST_ARMS,
        description="Seconds from the first turn's arrival to the last turn's end, of conversations that have ended and"
        " had two turns or more: by arm (reused, where turns may reuse, or holdout), then by octave of their turns.",
    )

    @property
    def eligible(self) -> int:
        """Turns that can reuse."""
        return self.turns - sum(self.not_eligible.values())


class FirstToken(Answer):
    """Time from a request's arrival to the first byte of its stream."""

    count: Count = Field(0, description="Streams measured.")
    p50_ms: float = Field(0, ge=0, description="Median, in milliseconds.")
    p95_ms: float = Field(0, ge=0, description="95th percentile, in milliseconds.")


class FirstTokenByArm(Answer):
    """First-token times of follow-ups within the window, by what happened to them; at whatever lengths they had."""

    reused: FirstToken = Field(default_factory=FirstToken, description="Prefill read decode's KV.")
    recomputed: FirstToken = Field(default_factory=FirstToken, description="Prefill computed everything.")
    holdout: FirstToken = Field(default_factory=FirstToken, description="Kept from reuse, to compare with.")


def first_token_by_arm(counted: ReuseCounters) -> FirstTokenByArm:
    """Percentiles of first-token times, of all lengths together."""
    return FirstTokenByArm(**{arm: _percentiles(counted, arm) for arm in FirstTokenByArm.model_fields})


def _percentiles(counted: ReuseCounters, arm: str) -> FirstToken:
    counts = histogram.merge(counted.first_token.get(arm, {}).values())
    return FirstToken(
        count=histogram.count(counts),
        p50_ms=round(1000 * histogram.percentile(counts, 0.5), 1),
        p95_ms=round(1000 * histogram.percentile(counts, 0.95), 1),
    )


class EngineSummary(Answer):
    """An engine as the router sees it."""

    address: str = Field(description="host:port, IPv6 in brackets.")
    role: Role = Field(description="prefill or decode.")
    revision: str = Field(description="Revision it exchanges KV with.")
    probed: bool = Field(False, description="Whether its metrics have been read: they tell bootId and guardActive.")
    boot_id: str = Field("", description="Changes at every start; empty where the guard's plugin is not loaded.")
    guard_active: bool = Field(False, description="Whether the guard runs in it; without it nothing is reused.")
    healthy: bool = Field(description="Whether it answers.")
    draining: bool = Field(False, description="Terminating: it finishes what it has and gets nothing new.")
    pinned_tokens: Count = Field(0, description="Tokens that it holds for this router's conversations.")


class ReuseSummary(Answer):
    """Body of `GET /reuse`. The operator adds up those of all routers."""

    version: int = Field(1, description="Of this format.")
    resource_uid: str = Field("", description="uid of the custom resource that the router's configuration is of.")
    since: float = Field(
        description="Begin of the counts, in seconds since the epoch: start of the router, or of its work for this"
        " custom resource."
    )
    window_seconds: float = Field(description="Length of the window, in seconds; shorter right after the start.")
    counters: ReuseCounters = Field(description="Since then; never falls.")
    window: ReuseCounters = Field(description="Over the window.")
    first_token: FirstTokenByArm = Field(description="Over the window.")
    engines: list[EngineSummary] = Field(default_factory=list, description="Every engine known.")
