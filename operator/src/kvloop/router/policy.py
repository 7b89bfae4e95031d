"""Which engine gets a turn. Pure: engines in, engine out."""

from collections.abc import Collection, Iterable

from kvloop.router.pool import Engine

AFFINITY_SLACK = 8
AFFINITY_FACTOR = 1.5
"""A holder keeps its conversation while its load is within this of the least loaded: moving it costs a transfer of the
whole prompt, and the local prefix cache."""


def choose_decode(
    engines: Iterable[Engine], *, holder: Engine | None, paired: Collection[str], exclude: Collection[Engine] = ()
) -> Engine | None:
    """The decode engine of a turn: its holder if that is not overloaded, else the least loaded.

    `paired` are the revisions that have a usable prefill engine; others are chosen only where there is no such decode.
    """
    usable = [engine for engine in engines if engine.usable and engine not in exclude]
    candidates = [engine for engine in usable if engine.revision in paired] or usable
    least = min(candidates, key=_load, default=None)
    if least is None or (holder in candidates and _affine(holder, least)):
        return holder if least is not None else None
    return least


def choose_prefill(
    engines: Iterable[Engine], revision: str, *, prefer: str, guarded: bool, exclude: Collection[Engine] = ()
) -> Engine | None:
    """The prefill engine of a turn, of the decode engine's revision.

    The one at address `prefer`, which served the conversation before, if it is not overloaded; else the least loaded.
    `guarded`: there is a handle to offer, so engines with an active guard come first.
    """
    usable = [e for e in engines if e.usable and e.revision == revision and e not in exclude]
    candidates = [e for e in usable if e.info.guard_active] if guarded else usable
    candidates = candidates or usable
    least = min(candidates, key=_load, default=None)
    if least is None:
        return None
    for engine in candidates:
        if engine.address == prefer and _affine(engine, least):
            return engine
    return least


def _load(engine: Engine) -> tuple[int, int]:
    return engine.in_flight, engine.last_used


def _affine(engine: Engine | None, least: Engine) -> bool:
    return engine is not None and engine.in_flight <= least.in_flight * AFFINITY_FACTOR + AFFINITY_SLACK
