"""What is measured, and what measures: built or installed once into the cache."""

import hashlib
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.progress import step
from e2e.cluster.system import cache_folder, go_command, locked

_GO_MODULE = Path(__file__).parent / "gomod"
_REPOSITORY = Path(__file__).parents[3]
VLLM_ROUTER = "vllm-router==0.1.17"
"""vLLM's own router, in Rust, from PyPI."""


@dataclass(frozen=True)
class Ground:
    """Where a router runs: its port, its engines, and a folder for its files."""

    port: int
    prefill: list[str]
    decode: list[str]
    folder: Path


def go_programs() -> Path:
    """The folder with `engine` and `load`."""
    digest = hashlib.sha256(platform.machine().encode())
    for file in sorted(_GO_MODULE.rglob("*.*")):
        digest.update(file.read_bytes())
    folder = cache_folder() / "bench" / f"router-{digest.hexdigest()[:12]}"
    with locked("bench-router"):
        if not folder.exists():
            with step("building the bench's engine and load generator"):
                command = [go_command(), "build", "-o", f"{folder}.new/", "./engine", "./load"]
                subprocess.run(command, cwd=_GO_MODULE, check=True, env=os.environ | {"GOWORK": "off"})
                Path(f"{folder}.new").rename(folder)
    return folder


def vllm_router() -> Path:
    """The command of vLLM's router, in an environment of its own."""
    folder = cache_folder() / "bench" / VLLM_ROUTER.replace("==", "-")
    command = folder / "bin" / "vllm-router"
    with locked("bench-vllm-router"):
        if not command.exists():
            with step(f"installing {VLLM_ROUTER}"):
                subprocess.run([sys.executable, "-m", "venv", folder], check=True)
                subprocess.run([folder / "bin" / "pip", "install", "--quiet", VLLM_ROUTER], check=True)
    return command


def kvloop(ground: Ground) -> list[str]:
    """This repository's router, with all its features on."""
    local = {"host": "127.0.0.1", "port": 0}
    static = {"prefill": [{"url": url} for url in ground.prefill], "decode": [{"url": url} for url in ground.decode]}
    config = {"listen": {**local, "port": ground.port}, "admin": local, "endpoints": {"static": static}}
    (ground.folder / "router.yaml").write_text(json.dumps(config))
    code = "from kvloop.router.main import main; main()"
    return [sys.executable, "-c", code, "--config", str(ground.folder / "router.yaml")]


def vllm_router_round_robin(ground: Ground) -> list[str]:
    """Its cheapest policy."""
    engines = [word for url in ground.prefill for word in ("--prefill", url)]
    engines += [word for url in ground.decode for word in ("--decode", url)]
    mode = ["--vllm-pd-disaggregation", "--kv-connector", "nixl", "--policy", "round_robin", "--log-level", "warning"]
    ports = ["--host", "127.0.0.1", "--port", str(ground.port), "--prometheus-port", str(free_port())]
    return [str(vllm_router()), *mode, *engines, *ports]


def bare_aiohttp(ground: Ground) -> list[str]:
    """See `bare_proxy`."""
    engines = ["--prefill", *ground.prefill, "--decode", *ground.decode]
    return [sys.executable, "-m", "e2e.bench.router.bare_proxy", "--port", str(ground.port), *engines]


def other(command: str) -> Callable[[Ground], list[str]]:
    """A command line with {port}, {prefill_hosts}, {prefill_ports}, {decode_hosts} and {decode_ports} to be filled in.

    Raises ValueError for another name in braces.
    """

    def filled(ground: Ground) -> list[str]:
        values = {"port": str(ground.port)}
        for role in ("prefill", "decode"):
            pairs = [url.removeprefix("http://").split(":") for url in getattr(ground, role)]
            values[f"{role}_hosts"], values[f"{role}_ports"] = (" ".join(part) for part in zip(*pairs, strict=True))
        return shlex.split(command.format(**values))

    try:
        filled(Ground(0, ["http://h:0"], ["http://h:0"], Path()))
    except (KeyError, IndexError) as error:
        raise ValueError(f"unknown {error} in the command") from error
    return filled


ROUTERS: dict[str, Callable[[Ground], list[str]]] = {
    "kvloop": kvloop,
    "vllm-router": vllm_router_round_robin,
    "bare aiohttp": bare_aiohttp,
}


def environment() -> dict[str, str]:
    """For routers in Python: the packages of this repository."""
    return os.environ | {"PYTHONPATH": f"{_REPOSITORY / 'operator' / 'src'}:{_REPOSITORY}"}


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
