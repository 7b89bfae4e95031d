"""Start and stop real vLLM servers on 127.0.0.1."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.engine import install

READY_SECONDS = 420
"""A start takes 50 to 150 s on two busy cores; an engine that is not ready by then never will be."""
BLOCK_SIZE = 32
"""vLLM's CPU attention wants a multiple of 32."""


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def model_folder(home: Path) -> Path:
    """The tiny model, made once per environment."""
    script = Path(__file__).with_name("tiny_model.py")
    folder = home / f"tiny-{script.stat().st_size}"
    if not (folder / "model.safetensors").exists():
        subprocess.run([str(home / "bin" / "python"), str(script), str(folder)], check=True)
    return folder


@dataclass
class Server:
    """A running vLLM."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait_ready(self) -> None:
        """Return when /health answers.

        Raises:
            RuntimeError: it exited or was not ready in time; the message holds the end of its log.
        """
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if (code := self.process.poll()) is not None:
                raise RuntimeError(f"{self.name} exited with {code}:\n{self.tail()}")
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + "/health", timeout=2):  # noqa: S310 (our own URL)
                return
            time.sleep(0.25)
        raise RuntimeError(f"{self.name} was not ready after {READY_SECONDS} s:\n{self.tail()}")

    def stop(self) -> None:
        """End it and its children."""
        for sig, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 20)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sig)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)


def start(
    name: str,
    kv_transfer_config: Mapping[str, Any],
    folder: Path,
    *,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Server:
    """Start `vllm serve` with the given connector configuration; `folder` takes its log. Does not wait for it."""
    home = install.ensure()
    port, side_port = free_port(), free_port()
    command = [str(home / "bin" / "vllm"), "serve", str(model_folder(home)), "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32", "--seed", "0"]
    command += ["--max-model-len", "4096", "--max-num-seqs", "8", "--max-num-batched-tokens", "4096"]
    command += ["--block-size", str(BLOCK_SIZE), "--kv-transfer-config", json.dumps(kv_transfer_config), *args]
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # pinned, spinning threads lock up a small machine
        "OMP_NUM_THREADS": "1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        **(env or {}),
    }
    log = folder / f"{name}.log"
    process = subprocess.Popen(
        command, env=environment, stdout=log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True
    )
    return Server(name, f"http://127.0.0.1:{port}", process, log)


@contextlib.contextmanager
def running(*servers: Server) -> Iterator[None]:
    """Wait until all are ready; stop them all at the end."""
    try:
        for server in servers:
            server.wait_ready()
        yield
    finally:
        for server in servers:
            server.stop()
