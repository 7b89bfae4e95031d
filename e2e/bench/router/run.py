"""``python -m e2e.bench router``: alternate the routers, and print a table of medians."""

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from e2e.bench.router import programs
from e2e.bench.router.measure import LOADS, Figures, repetition
from e2e.bench.router.programs import Ground
from kvloop.router.store import Entry
from kvloop.router.store.memory import MemoryStore

Row = Callable[[Figures, Figures], float]
CONVERSATIONS = 100_000
BLOCK_IDS = 256
"""Of a handle: 4,096 tokens in blocks of 16."""


def cpu_of_a_turn(figures: Figures, _: Figures) -> float:
    """Milliseconds."""
    result = figures.loads["turns"]
    return result.cpu_seconds / result.turns * 1000


def cpu_of_a_token(load: str) -> Row:
    """Microseconds: what turns of many tokens take beyond those of one."""

    def row(figures: Figures, direct: Figures) -> float:
        result = figures.loads[load]
        per_turn = result.cpu_seconds / result.turns * 1000
        return (per_turn - cpu_of_a_turn(figures, direct)) * 1000 / (LOADS[load].tokens - 1)

    return row


ROWS: dict[str, Row] = {
    "CPU of a turn, ms": cpu_of_a_turn,
    "CPU of a token in bursts, us": cpu_of_a_token("burst"),
    "CPU of a token, paced, us": cpu_of_a_token("paced"),
    "CPU of a token, calm, us": cpu_of_a_token("calm"),
    "added TTFT p50, one at a time, ms": lambda f, d: f.loads["one"].first_p50_ms - d.loads["one"].first_p50_ms,
    "added gap between tokens p99, calm, ms": lambda f, d: f.loads["calm"].gap_p99_ms - d.loads["calm"].gap_p99_ms,
    "turns a second, 32 at a time": lambda f, _: f.loads["turns"].turns / f.loads["turns"].seconds,
    "peak memory, MiB": lambda f, _: f.memory_mib,
    "turns with decode's handle, %": lambda f, _: 100 * f.handles / _turns(f),
    "turns that leak kv_transfer_params, %": lambda f, _: 100 * sum(r.leaks for r in f.loads.values()) / _turns(f),
    "failed turns": lambda f, _: sum(r.failed for r in f.loads.values()),
}


def _turns(figures: Figures) -> int:
    return sum(result.turns for result in figures.loads.values())


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench router", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3, help="of each router, in alternation (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the length of the loads (default 1)")
    parser.add_argument("--only", nargs="+", choices=list(programs.ROUTERS), default=list(programs.ROUTERS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument(
        *("--peer", "-p"), type=_peer, action="append", default=[], metavar="NAME=COMMAND",
        help="another router; {port}, {prefill_hosts}, {prefill_ports}, {decode_hosts}, {decode_ports} are filled in",
    )  # fmt: skip
    args = parser.parse_args(arguments)
    routers = {name: programs.ROUTERS[name] for name in args.only} | dict(args.peer)
    runs: dict[str, list[Figures]] = {name: [] for name in routers}
    direct: list[Figures] = []
    for number in range(args.repetitions):
        print(f"==> repetition {number + 1} of {args.repetitions}", file=sys.stderr)
        direct.append(repetition(None, args.scale))
        for name, figures in runs.items():
            figures.append(repetition(routers[name], args.scale))
    rows = {
        title: {name: _median(row, figures, direct) for name, figures in runs.items()} for title, row in ROWS.items()
    }
    _print(rows, list(routers), args.repetitions)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


def _peer(text: str) -> tuple[str, Callable[[Ground], list[str]]]:
    name, _, command = text.partition("=")
    try:
        return name, programs.other(command)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _median(row: Row, runs: list[Figures], direct: list[Figures]) -> float:
    return statistics.median(row(figures, plain) for figures, plain in zip(runs, direct, strict=True))


def _print(rows: dict[str, dict[str, float]], names: Sequence[str], repetitions: int) -> None:
    load, cores = os.getloadavg()[0], os.cpu_count()
    table = Table(title=f"Router: medians of {repetitions} alternated repetitions, {cores} cores, load {load:.1f}")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for title, values in rows.items():
        table.add_row(title, *(f"{values[name]:.3g}" for name in names))
    console = Console()
    console.print(table)
    memory = _memory_of_conversations()
    console.print(f"memory of {CONVERSATIONS:,} stored conversations of {BLOCK_IDS * 16:,} tokens: {memory:.0f} MiB")


def _memory_of_conversations() -> float:
    """In MiB, by the growth of this process."""
    ids = list(range(100_000, 100_000 + BLOCK_IDS))
    guard = {
        "v": 1,
        "bs": 16,
        "stride": 16,
        "n": BLOCK_IDS * 16,
        "chain": "A" * (BLOCK_IDS * 64 // 3),
        "tail": "A" * 24,
    }
    handle = {"remote_block_ids": [ids], "remote_engine_id": "e" * 36, "remote_host": "10.0.0.1", "guard": guard}

    async def fill() -> float:
        store = MemoryStore(CONVERSATIONS, lambda: 0.0)
        gc.collect()
        before = _resident_mib()
        for i in range(CONVERSATIONS):
            raw = bytes(memoryview(orjson.dumps({**handle, "n": i})))
            entry = Entry(raw, "10.0.0.1:8000", "boot", "rev", "10.0.0.2:8000", 4096)
            await store.put(i.to_bytes(16, "big"), entry, 470)
        return _resident_mib() - before

    return asyncio.run(fill())


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
