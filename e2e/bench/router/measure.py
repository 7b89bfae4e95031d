"""One repetition: start engines and a router, load it, read its CPU time, end it all."""

import json
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from e2e.bench.router import programs
from e2e.bench.router.programs import Ground

ENGINES = 2
"""Of each role."""
READY_SECONDS = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """Conversations of five turns; `at` of them at a time, `rounds` one after another."""

    at: int
    rounds: int
    tokens: int
    gap_ms: float = 0


LOADS = {
    "one": Load(1, 40, 1),  # the time that a router adds when it has nothing else to do
    "turns": Load(32, 8, 1),  # CPU time of a turn
    "burst": Load(32, 2, 200),  # tokens without a pause come several at once
    "paced": Load(32, 1, 200, 5),  # up to 6,400 tokens a second
    "calm": Load(8, 1, 200, 5),  # a token at a time
}


@dataclass
class Result:
    """What a load took, and how much CPU time of the router."""

    turns: int
    failed: int
    leaks: int
    seconds: float
    first_p50_ms: float
    first_p99_ms: float
    gap_p99_ms: float
    why: str = ""
    cpu_seconds: float = 0.0


@dataclass
class Figures:
    """A repetition."""

    loads: dict[str, Result] = field(default_factory=dict)
    memory_mib: float = 0.0
    handles: int = 0
    """Prefill legs that came with decode's handle."""


def repetition(router: Callable[[Ground], list[str]] | None, scale: float) -> Figures:
    """Measure a router; None measures an engine without one. `scale` multiplies the rounds."""
    go, figures = programs.go_programs(), Figures()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("w"))
        prefill = [stack.enter_context(_engine(go, "kv_producer", log)) for _ in range(ENGINES)]
        decode = [stack.enter_context(_engine(go, "kv_consumer", log)) for _ in range(ENGINES)]
        url, process = decode[0], None
        if router is not None:
            ground = Ground(programs.free_port(), prefill, decode, folder)
            url = f"http://127.0.0.1:{ground.port}"
            process = stack.enter_context(_running(router(ground), log))
            _await_answer(url, process, folder / "log")
        _load(go, url, Load(32, 1, 20))  # warm up
        warm = _handles(prefill)
        for name, load in LOADS.items():
            before = _usage(process.pid) if process else (0.0, 0.0)
            result = _load(go, url, Load(load.at, max(1, round(load.rounds * scale)), load.tokens, load.gap_ms))
            after = _usage(process.pid) if process else (0.0, 0.0)
            result.cpu_seconds = after[0] - before[0]
            figures.loads[name], figures.memory_mib = result, after[1]
        figures.handles = _handles(prefill) - warm
    return figures


def _handles(engines: list[str]) -> int:
    return sum(int(_get(engine + "/handles")) for engine in engines)


@contextmanager
def _engine(go: Path, role: str, log: IO[str]) -> Iterator[str]:
    with _running([str(go / "engine"), "--role", role], log, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


@contextmanager
def _running(command: list[str], log: IO[str], stdout: int | IO[str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process, ended with its descendants."""
    output = log if stdout is None else stdout
    process = subprocess.Popen(command, stdout=output, stderr=log, text=True, env=programs.environment())
    try:
        yield process
    finally:
        family = _family(process.pid)
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in family[1:]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        if process.stdout is not None:
            process.stdout.close()


def _load(go: Path, url: str, load: Load) -> Result:
    options = [
        "-c",
        str(load.at),
        "-rounds",
        str(load.rounds),
        "-tokens",
        str(load.tokens),
        "-gap-ms",
        str(load.gap_ms),
    ]
    done = subprocess.run([go / "load", "-url", url, *options], stdout=subprocess.PIPE, check=True)
    return Result(**json.loads(done.stdout))


def _await_answer(url: str, process: subprocess.Popen[str], log: Path) -> None:
    body = {"model": "bench", "max_tokens": 1, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    end = time.monotonic() + READY_SECONDS
    while True:
        try:
            _get(url + "/v1/chat/completions", json.dumps(body).encode())
        except OSError as error:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"a router gave no answer: {error}\n{log.read_text()[-2000:]}") from error
            time.sleep(0.1)
        else:
            return


def _get(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})  # noqa: S310 (our own servers)
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 (our own URL)
        content: bytes = answer.read()
        return content


def _usage(root: int) -> tuple[float, float]:
    """CPU seconds, with children that have ended, and peak memory in MiB of a process and its descendants."""
    cpu = memory = 0.0
    for pid in _family(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            status = Path(f"/proc/{pid}/status").read_text()
            # The clock of another process, in nanoseconds; /proc counts its time in ticks of 10 ms.
            cpu += time.clock_gettime(~pid << 3 | 2)
        except OSError:
            continue
        cpu += sum(map(int, fields[13:15])) / _TICKS
        if "VmHWM:" in status:
            memory += int(status.split("VmHWM:")[1].split()[0]) / 1024
    return cpu, memory


def _family(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found
