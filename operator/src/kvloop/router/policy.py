"""Which engine gets a turn. Pure: usable engines in, engine out."""

from collections.abc import Collection, Iterable

from kvloop.router.pool import Engine

AFFINITY_SLACK = 8
AFFINITY_FACTOR = 1.5
"""A holder keeps its conversation while its load is within this of the least loaded: moving it costs a transfer of the
whole prompt, and the local prefix cache."""


def choose_decode(engines: Iterable[Engine], *, holder: Engine | None, paired: Collection[str]) -> Engine | None:
    """The decode engine of a turn: its holder if that is not overloaded, else the least loaded.

    `paired` are the revisions that have a usable prefill engine; others are chosen only where there is no such decode.
    """
    usable = list(engines)
    candidates = [engine for engine in usable if engine.revision in paired] or usable
    least = min(candidates, key=_load, default=None)
    if least is not None and holder is not None and holder in candidates and _affine(holder, least):
        return holder
    return least


def choose_prefill(engines: Iterable[Engine], *, prefer: str) -> Engine | None:
    """The prefill engine of a turn: the one at address `prefer` if it is not overloaded, else the least loaded."""
    candidates = list(engines)
    least = min(candidates, key=_load, default=None)
    if least is None:
        return None
    preferred = next((engine for engine in candidates if engine.address == prefer), least)
    return preferred if _affine(preferred, least) else least


def _load(engine: Engine) -> tuple[int, int]:
    return engine.in_flight, engine.last_used


def _affine(engine: Engine, least: Engine) -> bool:
    return engine.in_flight <= least.in_flight * AFFINITY_FACTOR + AFFINITY_SLACK
