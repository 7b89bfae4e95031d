"""Start and stop real vLLM servers on 127.0.0.1."""

import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from e2e.engine import install
from kvloop.engine import bundle

READY_SECONDS: Final = 600
"""A start takes 50 s on two quiet cores and some minutes on crowded ones; who is not ready by then never will be."""
BLOCK_SIZE: Final = 32
"""vLLM's CPU attention wants a multiple of 32."""
KV_BLOCKS: Final = 2048
MAX_LENGTH: Final = 4096
MODEL: Final = "tiny"
ADAPTER: Final = "adapter"
ARGS: Final = ("--enforce-eager", "--seed=0", "--max-num-seqs=8", "--distributed-executor-backend=uni")
"""What keeps an engine small.

vLLM's CPU platform moves the worker into a process of its own, which spins on sched_yield while leases are open and is
starved for it on a crowded machine: transfers of milliseconds then take half a minute. So it stays in the core's.
"""
ENVIRONMENT: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # lets the worker stay
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, an upper bound
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # pinned, spinning threads lock up a small machine
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_PORTS = iter(random.sample(range(20_000, 30_000), 10_000))


def free_port() -> int:
    """A port that is free now; none that the kernel gives to connections, which may take it before the engine does."""
    for port in _PORTS:
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port between 20000 and 30000 is free")


def model_folder(home: Path) -> Path:
    """The tiny model, made once per environment."""
    script = Path(__file__).with_name("tiny_model.py")
    folder = home / f"tiny-{hashlib.sha256(script.read_bytes()).hexdigest()[:10]}"
    if not (folder / "model.safetensors").exists():
        subprocess.run([str(home / "bin" / "python"), str(script), str(folder)], check=True)
    return folder


def deliver(folder: Path) -> Path:
    """Write kvloop's plugin as Kubernetes mounts it; the folder goes on PYTHONPATH."""
    for path, text in bundle.files().items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return folder


class Server:
    """A vLLM that keeps its addresses over restarts."""

    def __init__(
        self,
        name: str,
        transfer: Mapping[str, Any],
        folder: Path,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`transfer` is ``--kv-transfer-config``; `folder` takes the log."""
        home = install.ensure()
        model = model_folder(home)
        port, side_port = free_port(), free_port()
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [
            *(str(home / "bin" / "vllm"), "serve", str(model), "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", str(MAX_LENGTH)),
            *("--max-num-batched-tokens", str(MAX_LENGTH)),
            *("--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(KV_BLOCKS)),
            *("--enable-prompt-tokens-details", "--enable-lora", "--lora-modules", f"{ADAPTER}={model / 'adapter'}"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--kv-transfer-config", json.dumps(transfer), *ARGS, *args),
        ]
        self._environment = {
            **os.environ,
            **ENVIRONMENT,
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
            **(env or {}),
        }

    def start(self) -> None:
        """Start it; does not wait."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait_ready(self) -> None:
        """Return when /health answers.

        Raises:
            RuntimeError: it exited or was not ready in time; the message holds the end of its log.
        """
        assert self._process is not None
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise RuntimeError(f"{self.name} exited with {code}:\n{self.tail()}")
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + "/health", timeout=2):  # noqa: S310 (our own URL)
                return
            time.sleep(0.25)
        raise RuntimeError(f"{self.name} was not ready after {READY_SECONDS} s:\n{self.tail()}")

    def kill(self) -> None:
        """End it and all its processes at once, as a node that fails."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
