"""`python -m e2e.report`: run everything, and write operator/docs/report."""

import argparse
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from e2e.cluster.progress import step
from e2e.report import bed, plots, real
from e2e.report.bed import Run, Setup
from e2e.report.page import page
from e2e.report.scenarios import CACHES, MEMORY, MEMORY_LOAD, PUBLISHED, SYSTEM_TOKENS, TRAFFIC, load
from kvloop.cli.load import Turn
from kvloop.router.outcome import Arm

FOLDER: Final = Path(__file__).parents[2] / "operator" / "docs" / "report"
HOLDOUT_PERCENT: Final = 40
CACHE_LENGTHS: Final = (2000, 8000, 24_000)
HELD_EVERY: Final = 20
"""Of the samples of what decode holds, each so manieth is kept."""

Figures = dict[str, Any]


def main() -> None:
    """Write the report; the simulated part is the same on every machine."""
    parser = argparse.ArgumentParser(prog="python -m e2e.report", description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write (default: operator/docs/report)")
    parser.add_argument("--only", choices=PARTS, nargs="*", default=list(PARTS), help="parts to run; others stay")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # engines warn of each lease that ends; here many are meant to
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "figures.json"
    figures: Figures = json.loads(file.read_text()) if file.exists() else {}
    for name in args.only:
        figures[name] = PARTS[name]()
        file.write_text(json.dumps(figures, indent=1) + "\n")
    plots.write(args.out, figures)
    (args.out / "README.md").write_text(page(figures))
    print(f"written: {args.out}")


def published() -> Figures:
    """Every published length, off and on."""
    found: Figures = {}
    for model, known in PUBLISHED.items():
        with step(f"{known.title}, {len(known.lengths)} lengths off and on", total=2 * len(known.lengths)) as advance:
            found[model] = _arms(Setup(model), known.lengths, advance)
    return found


def holdout() -> Figures:
    """Reused and held-out conversations of one run, as the router tells them apart."""
    with step("holdout"):
        run = bed.run(Setup(holdout_percent=HOLDOUT_PERCENT), replace(load(SYSTEM_TOKENS), conversations=10))
    found = {}
    for arm in (Arm.REUSED, Arm.HOLDOUT):
        times = [each.first_byte_seconds * 1e3 for each in run.outcomes if each.arm is arm and each.first_byte_seconds]
        found[arm.value] = {"turns": len(times), "p50Ms": round(median(times), 1)}
    return found


def caches() -> Figures:
    """Prefill's own prefix cache off, on, and too small."""
    with step("prefill's own prefix cache", total=2 * len(CACHES) * len(CACHE_LENGTHS)) as advance:
        return {name: _arms(setup, CACHE_LENGTHS, advance) for name, setup in CACHES.items()}


def _arms(setup: Setup, lengths: Sequence[int], advance: Callable[[], None]) -> Figures:
    arms: Figures = {}
    for arm in ("off", "on"):
        arms[arm] = []
        for length in lengths:
            run = bed.run(replace(setup, bidirectional=arm == "on"), load(length))
            arms[arm].append({"length": length, **summary(run)})
            advance()
    return arms


def traffic() -> Figures:
    """Friendly and adverse traffic, off and on."""
    found: Figures = {}
    with step("friendly and adverse traffic", total=2 * len(TRAFFIC)) as advance:
        for name, (setup, workload) in TRAFFIC.items():
            for arm in ("off", "on"):
                run = bed.run(replace(setup, bidirectional=arm == "on"), workload)
                found.setdefault(name, {})[arm] = summary(run)
                advance()
    return found


def memory() -> Figures:
    """What decode holds for later turns, and what it can still serve."""
    found: Figures = {}
    with step("decode's memory", total=len(MEMORY)) as advance:
        for name, setup in MEMORY.items():
            run = bed.run(setup, MEMORY_LOAD)
            longest = max(turn.prompt_tokens for turn in run.turns)
            left = int((setup.capacity - max(run.pinned)) / longest)
            held = enumerate(run.pinned[::HELD_EVERY])
            percents = [
                (round(at * HELD_EVERY * bed.SAMPLE_SECONDS, 2), round(100 * each / setup.capacity, 1))
                for at, each in held
            ]
            found[name] = {**summary(run), "turnsLeft": left, "held": percents}
            advance()
    return found


def on_real_engines() -> Figures:
    """Means of follow-ups by length of the system prompt."""
    with step("two real vLLM engines on the CPU"):
        arms = real.run()
    return {
        arm: [
            {"length": length, **times([turn for turn in turns if turn.number and turn.system_tokens == length])}
            for length in real.LOAD.system_tokens
        ]
        for arm, turns in arms.items()
    }


def summary(run: Run) -> Figures:
    """What the page tells of a run."""
    return {
        **times(run.turns),
        "followUpsP50Ms": times(run.follow_ups)["p50Ms"] if run.follow_ups else None,
        "hitPercent": round(run.hit_percent, 1),
        "pinnedPercent": round(100 * max(run.pinned) / run.setup.capacity, 1),
        "misses": dict(run.counters.misses),
        "wrong": run.wrong,
    }


def times(turns: Sequence[Turn]) -> Figures:
    """Of at least one turn."""
    found = [turn.ttft_s * 1e3 for turn in turns]
    return {"turns": len(found), "meanMs": round(fmean(found), 1), "p50Ms": round(median(found), 1)}


PARTS: Final[Mapping[str, Callable[[], Figures]]] = {
    "published": published,
    "holdout": holdout,
    "caches": caches,
    "traffic": traffic,
    "memory": memory,
    "real": on_real_engines,
}

if __name__ == "__main__":
    main()
