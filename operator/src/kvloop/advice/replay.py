"""A replay of turns on a calculated system: what another TTL or threshold would have brought. All of it simulated."""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from kvloop.advice.published import Model
from kvloop.advice.turns import Turn
from kvloop.api import histogram

_START, _END = 1, 0
"""Of two events at once the end comes first: its KV is there for who starts then."""


@dataclass(frozen=True, slots=True)
class System:
    """The system that is calculated. Its clients ask when those of the log or trace did, however fast it is."""

    model: Model
    decode_pods: int = 1
    prefill_pods: int | None = None
    """Pods that prefill one turn after the other; None: as many as it takes, so that no turn waits."""
    max_pinned_percent: int = 50
    """Above this share of decode's memory turns are given up, as the router does it."""
    prefill_cache_hit_percent: float = 0.0
    """Share of each history that prefill finds in its own cache."""

    @property
    def capacity_tokens(self) -> int:
        """Of all decode pods."""
        return self.model.capacity_tokens * self.decode_pods


@dataclass(frozen=True, slots=True)
class Settings:
    """What is tried. A `ttl` of 0 is no reuse."""

    ttl: float
    """Seconds for which a handle can be used."""
    threshold: int
    """Fewest tokens worth fetching."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came out."""

    settings: Settings
    turns: int
    follow_ups: int
    reused: int
    """Follow-ups that fetched."""
    expired: int
    """Follow-ups that came too late."""
    displaced: int
    """Follow-ups whose KV had been given up for want of memory."""
    reused_tokens: int
    history_tokens: int
    first_token_p50: float
    """Of follow-ups, in seconds: waiting, prefill and transfer; without decode's own part."""
    first_token_p95: float
    prefill_seconds: float
    """Of all turns, transfers included."""
    pinned_mean: float
    """Tokens held for later turns, over time and all decode pods."""
    pinned_p95: float
    pinned_peak: int
    concurrency_left: float
    """Turns of mean size that fit beside these 95 percent of the time, over all decode pods."""

    @property
    def hit_share(self) -> float:
        """Follow-ups that fetched, of all: 0 to 1."""
        return self.reused / self.follow_ups if self.follow_ups else 0.0

    @property
    def token_share(self) -> float:
        """Tokens fetched, of those that equal what decode once held: 0 to 1."""
        return self.reused_tokens / self.history_tokens if self.history_tokens else 0.0


class Replay:
    """Turns put in order once, to be replayed with many settings."""

    def __init__(self, turns: Sequence[Turn], system: System) -> None:
        self._turns = turns
        self._system = system
        events = [(turn.start, _START, i) for i, turn in enumerate(turns)]
        events += [(turn.end, _END, i) for i, turn in enumerate(turns) if turn.held_tokens and not turn.last]
        self._events = sorted(events)
        sizes = [turn.held_tokens for turn in turns if turn.held_tokens]
        self._mean_tokens = sum(sizes) / len(sizes) if sizes else 0.0
        self._usual_gap = median([turn.gap for turn in turns if turn.gap is not None] or [0.0])

    def run(self, settings: Settings) -> Result:
        """Replay them all; takes a few microseconds a turn."""
        system, times = self._system, _Times()
        memory = _Memory(settings.ttl, system.capacity_tokens * system.max_pinned_percent / 100, self._usual_gap)
        prefill = _Prefill(system, settings)
        for time, kind, i in self._events:
            turn = self._turns[i]
            memory.advance(time)
            if kind == _END:
                memory.keep(i, turn.held_tokens, time)
            elif turn.gap is None:
                prefill.compute(turn, time)
            else:
                there = memory.take(turn.before) if turn.before is not None else 0 < turn.gap <= settings.ttl
                times.add(turn, prefill.follow(turn, time, there=there), settings.ttl, there=there)
        return self._result(settings, memory, prefill, times)

    def _result(self, settings: Settings, memory: "_Memory", prefill: "_Prefill", times: "_Times") -> Result:
        p95 = min(memory.percentile(0.95), float(memory.peak))
        free = self._system.capacity_tokens - p95
        return Result(
            settings=settings,
            turns=len(self._turns),
            follow_ups=len(times.seconds),
            reused=prefill.fetches,
            expired=times.expired,
            displaced=times.displaced,
            reused_tokens=prefill.fetched_tokens,
            history_tokens=times.history_tokens,
            first_token_p50=times.percentile(0.5),
            first_token_p95=times.percentile(0.95),
            prefill_seconds=prefill.seconds,
            pinned_mean=memory.mean(),
            pinned_p95=p95,
            pinned_peak=memory.peak,
            concurrency_left=free / self._mean_tokens if self._mean_tokens else 0.0,
        )


@dataclass
class _Times:
    """First-token times of follow-ups, and why some did not reuse."""

    seconds: list[float] = field(default_factory=list)
    history_tokens: int = 0
    expired: int = 0
    displaced: int = 0

    def add(self, turn: Turn, seconds: float, ttl: float, *, there: bool) -> None:
        self.seconds.append(seconds)
        self.history_tokens += turn.history_tokens
        late = (turn.gap or 0.0) > ttl
        self.expired += not there and late
        self.displaced += not there and not late

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


class _Prefill:
    """Prefill pods, each with one turn at a time."""

    def __init__(self, system: System, settings: Settings) -> None:
        self._model = system.model
        self._own = system.prefill_cache_hit_percent / 100
        self._threshold = settings.threshold
        self._free_at = [-math.inf] * (system.prefill_pods or 0)
        self.seconds = 0.0
        self.fetches = 0
        self.fetched_tokens = 0

    def compute(self, turn: Turn, time: float) -> float:
        """Seconds until a first turn's prompt is computed."""
        return self._leg(time, turn.prompt_tokens, 0)

    def follow(self, turn: Turn, time: float, *, there: bool) -> float:
        """The same of a follow-up, whose history decode still holds or does not."""
        missing = round(turn.history_tokens * (1 - self._own))
        fetched = missing if there and missing and missing >= self._threshold else 0
        new = turn.prompt_tokens - turn.history_tokens
        return self._leg(time, new + missing - fetched, fetched)

    def _leg(self, time: float, computed: int, fetched: int) -> float:
        seconds = self._model.prefill.at(computed) + (self._model.transfer.at(fetched) if fetched else 0.0)
        self.seconds += seconds
        self.fetches += fetched > 0
        self.fetched_tokens += fetched
        if not self._free_at:
            return seconds
        begin = max(time, heapq.heappop(self._free_at))
        heapq.heappush(self._free_at, begin + seconds)
        return begin - time + seconds


class _Memory:
    """What decode holds for later turns, over time."""

    def __init__(self, ttl: float, most: float, usual_gap: float) -> None:
        self._ttl = ttl
        self._most = most
        self._usual_gap = usual_gap
        self._held: dict[int, int] = {}
        self._leases: deque[tuple[float, int]] = deque()
        """Ends and turns, by rising time, since all leases are of one length; those taken stay until their end."""
        self._pinned = 0
        self._now = -math.inf
        self._levels: dict[int, float] = {}
        self._area = 0.0
        self._seconds = 0.0
        self.peak = 0

    def advance(self, time: float) -> None:
        """Go on to a time; leases that end until then end when they do."""
        while self._leases and self._leases[0][0] <= time:
            end, turn = self._leases.popleft()
            if turn in self._held:
                self._pass(end)
                self.take(turn)
        self._pass(time)

    def keep(self, turn: int, tokens: int, time: float) -> None:
        """Hold a turn, and give up others, or itself, if that is too much."""
        if self._ttl <= 0:
            return
        self._held[turn] = tokens
        self._leases.append((time + self._ttl, turn))
        self._pinned += tokens
        while self._pinned > self._most:
            self._give_up(time)
        self.peak = max(self.peak, self._pinned)

    def _give_up(self, time: float) -> None:
        """As the router does: the oldest if it has waited longer than half of all gaps do, or else the newest."""
        while self._leases[0][1] not in self._held:
            self._leases.popleft()
        end, oldest = self._leases[0]
        if end - self._ttl < time - self._usual_gap:
            self._leases.popleft()
            self.take(oldest)
        else:
            while not self.take(self._leases.pop()[1]):
                pass

    def take(self, turn: int) -> bool:
        """Free a turn; returns whether it was there."""
        tokens = self._held.pop(turn, 0)
        self._pinned -= tokens
        return tokens > 0

    def mean(self) -> float:
        return self._area / self._seconds if self._seconds else 0.0

    def percentile(self, share: float) -> float:
        return histogram.percentile(self._levels, share, histogram.TOKEN)

    def _pass(self, time: float) -> None:
        seconds = time - self._now
        if 0 < seconds < math.inf:
            level = histogram.bucket(self._pinned, histogram.TOKEN)
            self._levels[level] = self._levels.get(level, 0.0) + seconds
            self._area += seconds * self._pinned
            self._seconds += seconds
        self._now = time
