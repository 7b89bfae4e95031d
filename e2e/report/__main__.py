"""`python -m e2e.report`: run everything, and write operator/docs/report."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from e2e.cluster.progress import step
from e2e.report import bed, plots, real
from e2e.report.bed import Run, Setup
from e2e.report.page import page
from e2e.report.scenarios import CACHES, MEMORY, MEMORY_LOAD, PUBLISHED, TRAFFIC, load
from kvloop.cli.load import Turn
from kvloop.router.outcome import Arm

FOLDER: Final = Path(__file__).parents[2] / "operator" / "docs" / "report"
HOLDOUT_PERCENT: Final = 40
SIMULATED: Final = "SIMULATED"

Figures = dict[str, Any]


def main() -> None:
    """Write the report; the simulated part is the same on every machine."""
    parser = argparse.ArgumentParser(prog="python -m e2e.report", description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write (default: operator/docs/report)")
    parser.add_argument("--simulated-only", action="store_true", help="leave out the real engines, keep their figures")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "figures.json"
    figures: Figures = {
        "published": published(args.out),
        "holdout": holdout(),
        "caches": caches(args.out),
        "traffic": traffic(),
        "memory": memory(args.out),
    }
    if args.simulated_only:
        figures["real"] = json.loads(file.read_text())["real"]
    else:
        with step("two real vLLM engines on the CPU"):
            figures["real"] = on_real_engines(args.out)
    file.write_text(json.dumps(figures, indent=1) + "\n")
    (args.out / "README.md").write_text(page(figures))
    print(f"written: {args.out}")


def published(out: Path) -> Figures:
    """Every published length, off and on."""
    found: Figures = {}
    for model, known in PUBLISHED.items():
        arms: dict[str, list[Figures]] = {"off": [], "on": []}
        with step(f"{known.title}, {len(known.lengths)} lengths off and on", total=2 * len(known.lengths)) as advance:
            for length in known.lengths:
                for arm, rows in arms.items():
                    run = bed.run(Setup(model, bidirectional=arm == "on"), load(length))
                    rows.append({"length": length, **summary(run)})
                    advance()
        found[model] = arms
        lines = {arm: [(row["length"], row["meanMs"]) for row in rows] for arm, rows in arms.items()}
        plots.first_tokens(out / f"{model}.png", f"{known.title}, {SIMULATED}", lines, known)
    return found


def holdout() -> Figures:
    """Reused and held-out conversations of one run, as the router tells them apart."""
    with step("holdout"):
        run = bed.run(Setup(holdout_percent=HOLDOUT_PERCENT), replace(load(8000), conversations=10))
    times = {
        arm.value: [
            each.first_byte_seconds * 1e3 for each in run.outcomes if each.arm is arm and each.first_byte_seconds
        ]
        for arm in (Arm.REUSED, Arm.HOLDOUT)
    }
    return {arm: {"turns": len(found), "p50Ms": round(median(found), 1)} for arm, found in times.items()}


def caches(out: Path) -> Figures:
    """Prefill's own prefix cache off, on, and too small."""
    lengths = (2000, 8000, 24_000)
    found: Figures = {}
    with step("prefill's own prefix cache", total=len(CACHES) * len(lengths) * 2) as advance:
        for name, setup in CACHES.items():
            for arm in ("off", "on"):
                rows = []
                for length in lengths:
                    run = bed.run(replace(setup, bidirectional=arm == "on"), load(length))
                    rows.append({"length": length, **summary(run)})
                    advance()
                found.setdefault(name, {})[arm] = rows
    lines = {
        f"cache {name.split(',')[0]}{',' + name.split(',')[1] if 'two' in name else ''}; reuse {arm}": [
            (row["length"], row["meanMs"]) for row in rows
        ]
        for name, arms in found.items()
        for arm, rows in arms.items()
    }
    plots.first_tokens(out / "prefill-cache.png", f"Prefill's own prefix cache, Qwen3-32B, {SIMULATED}", lines)
    return found


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


def memory(out: Path) -> Figures:
    """What decode holds for later turns, and what it can still serve."""
    found: Figures = {}
    lines = {}
    with step("decode's memory", total=len(MEMORY)) as advance:
        for name, setup in MEMORY.items():
            run = bed.run(setup, MEMORY_LOAD)
            longest = max(turn.prompt_tokens for turn in run.turns)
            found[name] = {**summary(run), "turnsLeft": int((setup.capacity - max(run.pinned)) / longest)}
            lines[name] = [(at * bed.SAMPLE_SECONDS, 100 * held / setup.capacity) for at, held in enumerate(run.pinned)]
            advance()
    plots.memory(out / "memory.png", f"Held for later turns, GLM-5-FP8, {SIMULATED}", lines)
    return found


def on_real_engines(out: Path) -> Figures:
    """Means of follow-ups by length of the system prompt."""
    arms = real.run()
    found = {
        arm: [
            {"length": length, **times([turn for turn in turns if turn.number and turn.system_tokens == length])}
            for length in real.LOAD.system_tokens
        ]
        for arm, turns in arms.items()
    }
    lines = {arm: [(row["length"], row["meanMs"]) for row in rows] for arm, rows in found.items()}
    plots.first_tokens(out / "real-cpu.png", "Follow-ups on two real vLLM engines, tiny model, CPU", lines)
    return found


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


def times(turns: list[Turn]) -> Figures:
    """Of at least one turn."""
    found = [turn.ttft_s * 1e3 for turn in turns]
    return {"turns": len(found), "meanMs": round(fmean(found), 1), "p50Ms": round(median(found), 1)}


if __name__ == "__main__":
    main()
