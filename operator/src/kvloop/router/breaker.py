"""Circuit breakers: what fails again and again is left alone for a while, then tried by one turn."""

from dataclasses import dataclass

from kvloop.api.contract import CircuitBreaker


@dataclass(slots=True)
class Breaker:
    """State of one engine, or of one pair of engines. Times are on the monotonic clock, in seconds."""

    failures: int = 0
    """In a row."""
    until: float = 0.0
    """Left alone until then."""

    def allows(self, now: float) -> bool:
        return now >= self.until

    def claim(self, now: float, settings: CircuitBreaker) -> None:
        """A turn goes there: after failures it is the only one, until its outcome is known."""
        if self.failures >= settings.failures:
            self.until = now + settings.open_seconds

    def failed(self, now: float, settings: CircuitBreaker) -> None:
        self.failures += 1
        self.claim(now, settings)

    def succeeded(self) -> None:
        self.failures, self.until = 0, 0.0
