"""Runs helm, with nothing of the user's own configuration."""

import os
import subprocess
import tempfile
from pathlib import Path

from e2e.cluster.binaries import ensure


class HelmError(RuntimeError):
    """Helm said no; the message is its standard error."""


def helm(*arguments: str | Path, kubeconfig: Path | None = None, timeout_s: float = 180) -> str:
    """Run helm and return its standard output.

    Raises:
        HelmError: helm ended with another code than 0.
    """
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.defpath, "HOME": home, "KUBECONFIG": str(kubeconfig or "")}
        done = subprocess.run(
            [ensure(["helm"])["helm"], *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env=environment,
        )
    if done.returncode:
        raise HelmError(done.stderr.strip().removeprefix("Error: "))
    return done.stdout
