"""The report as a page of Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from e2e.report.scenarios import PAUSE_SECONDS, PUBLISHED, SYSTEM_TOKENS

Figures = Mapping[str, Any]

HEAD = """\
# What reuse is worth

Written by `make report`. **Every figure but those of the last section is SIMULATED**: the engines hold no model. Their
times are straight lines through the published end points (see `e2e/enginesim/speed.py`), their KV blocks are real
enough that a wrong one gives a wrong answer, and router and guard are the shipped ones. They run in virtual time: what
the programs themselves take is left out, and the figures are the same on every machine.

Published: vLLM blog, October 2026, "Improve TTFT for Multi-Turn Agentic Workloads with Bi-Directional KV Transfer in
vLLM": one prefill and one decode engine on two p5en.48xlarge, prefill's own prefix cache off, two clients, 10
conversations of 10 turns with 150 tokens in and 300 out. Here there are 5 conversations; the rest is the same. TTFT is
the time to the first token, as a mean over all turns, first turns included.
"""


def page(figures: Figures) -> str:
    """The whole page."""
    return "\n".join(
        [
            HEAD,
            *_published(figures["published"]),
            *_holdout(figures["holdout"]),
            *_caches(figures["caches"]),
            *_traffic(figures["traffic"]),
            *_memory(figures["memory"]),
            *_real(figures["real"]),
        ]
    )


def _published(found: Figures) -> Iterable[str]:
    yield "## The published test beds\n"
    errors = []
    for model, arms in found.items():
        known = PUBLISHED[model]
        rows = [
            (f"{off['length']:,}", _ms(off), _ms(on), _ratio(off, on), f"{on['hitPercent']:.0f} %")
            for off, on in zip(arms["off"], arms["on"], strict=True)
        ]
        yield f"### {known.title}, simulated\n"
        yield from _table(("system prompt", "TTFT off", "TTFT on", "faster", "reused"), rows)
        yield f"![Time to the first token]({model}.png)\n"
        for arm, ends in (("off", known.off), ("on", known.on)):
            for row, truth in ((arms[arm][0], ends[0]), (arms[arm][-1], ends[1])):
                error = 100 * (row["meanMs"] / truth - 1)
                errors.append((known.title, f"{row['length']:,}", arm, f"{truth:,.0f} ms", _ms(row), f"{error:+.0f} %"))
    yield "### How far the simulation is from what was published\n"
    yield "Only end points are published as numbers.\n"
    yield from _table(("model", "system prompt", "reuse", "published", "simulated", "error"), errors)


def _holdout(found: Figures) -> Iterable[str]:
    yield "## Holdout, simulated\n"
    yield (
        f"Qwen3-32B, system prompts of {SYSTEM_TOKENS:,} tokens; some conversations never reuse"
        " (`router.holdoutPercent`).\n"
    )
    rows = [(arm, str(each["turns"]), f"{each['p50Ms']:,.0f} ms") for arm, each in found.items()]
    yield from _table(("follow-ups", "turns", "median TTFT"), rows)


def _caches(found: Figures) -> Iterable[str]:
    yield "## With prefill's own prefix cache, simulated\n"
    yield "The published runs have it off. Where it holds the conversation anyway, reuse saves the last reply only.\n"
    rows = [
        (name, f"{off['length']:,}", _ms(off), _ms(on), _ratio(off, on))
        for name, arms in found.items()
        for off, on in zip(arms["off"], arms["on"], strict=True)
    ]
    yield from _table(("prefill's prefix cache", "system prompt", "TTFT off", "TTFT on", "faster"), rows)
    yield "![Prefill's own prefix cache](prefill-cache.png)\n"


def _traffic(found: Figures) -> Iterable[str]:
    yield "## Friendly and adverse traffic, simulated\n"
    yield (
        f"Qwen3-32B, system prompts of {SYSTEM_TOKENS:,} tokens, prefill's prefix cache off. Pauses of"
        f" {PAUSE_SECONDS} s lie between a reply and the next turn. Wrong answers: compared with a cold computation of"
        " each turn.\n"
    )
    rows = [
        (
            name,
            _ms(arms["off"]),
            _ms(arms["on"]),
            f"{arms['on']['hitPercent']:.0f} %",
            ", ".join(f"{reason} {count}" for reason, count in sorted(arms["on"]["misses"].items())) or "none",
            f"{arms['on']['pinnedPercent']:.1f} %",
            str(arms["off"]["wrong"] + arms["on"]["wrong"]),
        )
        for name, arms in found.items()
    ]
    heads = ("traffic", "TTFT off", "TTFT on", "reused", "misses", "most of decode's cache held", "wrong")
    yield from _table(heads, rows)


def _memory(found: Figures) -> Iterable[str]:
    yield "## What it costs decode, simulated\n"
    yield (
        "GLM-5-FP8, whose decode pod holds some 340,000 tokens (an estimate, see `kvloop/advice/published.py`): 12"
        " conversations of 6 turns, system prompts of 16,000 tokens, pauses of 45 s. A handle that nobody comes back"
        " for holds memory until its TTL; `router.maxPinnedPercent` gives up some for the others.\n"
    )
    rows = [
        (name, _ms(each), f"{each['hitPercent']:.0f} %", f"{each['pinnedPercent']:.0f} %", str(each["turnsLeft"]))
        for name, each in found.items()
    ]
    heads = ("setting", "TTFT", "reused", "most of decode's cache held", "longest turns that still fit beside")
    yield from _table(heads, rows)
    yield "![Held for later turns](memory.png)\n"


def _real(found: Figures) -> Iterable[str]:
    yield "## Two real vLLM engines on a CPU\n"
    yield (
        "vLLM 0.32.0 with NIXL over TCP and a tiny random model on two shared CPU cores, in real time: it shows that"
        " real engines do the same, not what GPUs would gain. Follow-ups only, means.\n"
    )
    rows = [
        (f"{off['length']:,}", str(off["turns"]), _ms(off), _ms(on), _ratio(off, on))
        for off, on in zip(found["off"], found["on"], strict=True)
    ]
    yield from _table(("system prompt", "follow-ups", "TTFT off", "TTFT on", "faster"), rows)
    yield "![Follow-ups on two real vLLM engines](real-cpu.png)"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _ms(row: Figures) -> str:
    return f"{row['meanMs']:,.0f} ms"


def _ratio(off: Figures, on: Figures) -> str:
    return f"{off['meanMs'] / on['meanMs']:.1f}x"
