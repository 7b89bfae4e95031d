"""The table that the demonstration ends with."""

from collections.abc import Sequence

from rich.table import Table

from kvloop.cli.load import Turn
from kvloop.cli.measure import table


def ttft_table(without: Sequence[Turn], with_reuse: Sequence[Turn], time_scale: float = 1) -> Table:
    """Time to first token of the follow-ups, by length of the system prompt, without and with reuse.

    Args:
        without: Turns of a run in which decode's cache never returned to prefill.
        with_reuse: Turns of the same conversations when it did.
        time_scale: What the simulated engines' clocks were set to; the times shown are divided by it.
    """
    return table(
        {"Recomputed": without, "Reused": with_reuse},
        time_scale,
        title="Time to first token of follow-up turns, SIMULATED",
        caption="On simulated engines; no GPU was measured. First turns, with nothing to reuse, are left out.",
    )
