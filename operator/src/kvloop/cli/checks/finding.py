"""What a check comes to."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, or may work, or could not be looked at."""
    FAIL = "fail"
    """It does not work."""


@dataclass(frozen=True)
class Finding:
    """What a check found; `remedy` says what to do, and is empty where nothing is to be done."""

    check: str
    level: Level
    detail: str
    remedy: str = ""


def ok(check: str, detail: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, detail)


def warn(check: str, detail: str, remedy: str) -> Finding:
    """To be looked at."""
    return Finding(check, Level.WARN, detail, remedy)


def fail(check: str, detail: str, remedy: str) -> Finding:
    """To be mended."""
    return Finding(check, Level.FAIL, detail, remedy)


def unseen(check: str, why: str) -> Finding:
    """Whoever asks may not look."""
    return Finding(check, Level.WARN, f"could not be looked at: {why}", "ask for that right, or somebody who has it")


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level; ok if there are none."""
    order = list(Level)
    return max((each.level for each in findings), key=order.index, default=Level.OK)
