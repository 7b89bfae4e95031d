"""The table that the demonstration ends with."""

from collections.abc import Callable, Sequence
from statistics import median

from rich.table import Table

from e2e.demo.load import Turn


def ttft_table(without: Sequence[Turn], with_reuse: Sequence[Turn], time_scale: float = 1) -> Table:
    """Time to first token of the follow-ups, by length of the system prompt, without and with reuse.

    Args:
        without: Turns of a run in which decode's cache never returned to prefill.
        with_reuse: Turns of the same conversations when it did.
        time_scale: What the simulated engines' clocks were set to; the times shown are divided by it.
    """
    table = Table(
        title="Time to first token of follow-up turns, SIMULATED",
        caption="Medians on simulated engines; no GPU was measured. First turns, with nothing to reuse, are left out.",
    )
    for header in ("System prompt", "Whole prompt", "Follow-ups", "Recomputed", "Reused", "Faster"):
        table.add_column(header, justify="right")
    for length in sorted({turn.system_tokens for turn in with_reuse}):
        before, after = (
            [turn for turn in turns if turn.number and turn.system_tokens == length] for turns in (without, with_reuse)
        )
        prompt = _median(after, lambda turn: turn.prompt_tokens)
        slow, fast = (_median(turns, lambda turn: turn.ttft_s / time_scale * 1e3) for turns in (before, after))
        table.add_row(
            f"{length:,}",
            f"{prompt:,.0f}",
            f"{len(after)}",
            f"{slow:,.0f} ms",
            f"{fast:,.0f} ms",
            f"{slow / fast:.1f}x",
        )
    return table


def _median(turns: Sequence[Turn], value: Callable[[Turn], float]) -> float:
    return median(map(value, turns))
