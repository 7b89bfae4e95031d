"""Build the cluster's programs from Go modules, once, into a cache outside the repository.

Each folder in gomod/ is a Go module that pins one project (go.mod) and the digests of all it needs (go.sum). A program
lands in `<cache>/bin/<name>-<version>-<digest>/<name>`, where the digest covers that folder and the build flags: a
cache from another machine of the same architecture is as good as a build.
"""

import hashlib
import os
import platform
import re
import subprocess
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import step
from e2e.cluster.system import cache_folder, go_command, locked

_MODULES = Path(__file__).parent / "gomod"


@dataclass(frozen=True)
class Program:
    """One command of a Go module in gomod/<folder>."""

    name: str
    folder: str
    package: str
    module: str = ""  # whose version in go.mod is the program's; empty for a program of our own
    tags: str = ""  # build tags

    @property
    def version(self) -> str:
        if not self.module:
            return "local"
        found = re.search(
            rf"^\s*(?:require )?{re.escape(self.module)} (v\S+)",
            (_MODULES / self.folder / "go.mod").read_text(),
            re.MULTILINE,
        )
        if not found:
            raise ClusterError(
                f"gomod/{self.folder}/go.mod does not require {self.module}: run `go get -tool {self.package}` there"
            )
        return found.group(1)

    @property
    def ldflags(self) -> str:
        flags = "-s -w"
        if self.module == "k8s.io/kubernetes":  # without these the servers call themselves v0.0.0, which clients reject
            major, minor, _ = self.version.removeprefix("v").split(".", 2)
            for key, value in (("gitVersion", self.version), ("gitMajor", major), ("gitMinor", minor)):
                flags += f" -X k8s.io/component-base/version.{key}={value}"
        if self.module == "helm.sh/helm/v3":  # without a cluster, charts are rendered for Kubernetes v1.20 else
            flags += f" -X helm.sh/helm/v3/internal/version.version={self.version}"
            _, minor, _ = PROGRAMS["kubectl"].version.split(".", 2)
            for package in ("chartutil", "lint/rules"):
                flags += f" -X helm.sh/helm/v3/pkg/{package}.k8sVersionMajor=1"
                flags += f" -X helm.sh/helm/v3/pkg/{package}.k8sVersionMinor={minor}"
        return flags

    @property
    def path(self) -> Path:
        digest = hashlib.sha256(f"{self.package} {self.ldflags} {platform.machine()}{self.tags}".encode())
        for file in sorted((_MODULES / self.folder).iterdir()):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return cache_folder() / "bin" / f"{self.name}-{self.version}-{digest.hexdigest()[:12]}" / self.name


_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
_METRICS = ("prometheus", "promtool")
_PROMETHEUS = "github.com/prometheus/prometheus"
_FEW = "remove_all_sd"  # without the clients of a dozen clouds, which find targets there: a third less to build
PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
        *(Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes") for name in _KUBERNETES),
        Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok"),
        Program("coredns", "coredns", "kvloop.io/e2e/cluster/coredns", "github.com/coredns/coredns"),
        Program("helm", "helm", "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3"),
        Program("kstatus", "kstatus", "kvloop.io/e2e/cluster/kstatus", "github.com/fluxcd/cli-utils"),
        Program("testpod", "testpod", "kvloop.io/e2e/cluster/testpod"),
        *(Program(name, "prometheus", f"{_PROMETHEUS}/cmd/{name}", _PROMETHEUS, tags=_FEW) for name in _METRICS),
    )
}


def missing(names: Iterable[str]) -> list[Program]:
    """Those of the programs that are not in the cache yet."""
    return [PROGRAMS[name] for name in names if not PROGRAMS[name].path.exists()]


def ensure(names: Iterable[str]) -> dict[str, Path]:
    """Build what is not in the cache yet, and return where each program is.

    Raises:
        ClusterError: a build failed; its last lines are in the message.
    """
    names = list(names)
    by_folder: dict[str, list[Program]] = defaultdict(list)
    for program in missing(names):
        by_folder[program.folder].append(program)
    for folder, wanted in by_folder.items():
        with locked(folder):
            if left := missing(program.name for program in wanted):  # another process may have built them meanwhile
                _build(left)
    return {name: PROGRAMS[name].path for name in names}


def _build(programs: list[Program]) -> None:
    """Build programs of one module by one `go build`, so that they share its work and its parallelism."""
    source = _MODULES / programs[0].folder
    (cache_folder() / "bin").mkdir(exist_ok=True)
    packages = [program.package for program in programs]
    flags = ["-trimpath", "-buildvcs=false", f"-tags={programs[0].tags}"]
    title = f"building {', '.join(program.name for program in programs)} {programs[0].version}"
    with step(f"downloading the Go modules of {programs[0].folder}"):
        stale = _go(source, "list", *flags, "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", *packages)
    with tempfile.TemporaryDirectory(dir=cache_folder() / "bin", prefix=".build-") as out:
        flags += ["-v", "-ldflags", programs[0].ldflags, "-o", f"{out}/"]
        with step(title, total=len(stale)) as advance:
            _go(source, "build", *flags, *packages, on_package=advance)
        for program in programs:
            folder = Path(tempfile.mkdtemp(dir=out))
            (Path(out) / _binary_name(program.package)).rename(folder / program.name)
            folder.chmod(0o755)
            folder.rename(program.path.parent)  # atomic: others see the whole program or none


def _binary_name(package: str) -> str:
    """The file name that `go build` gives a package: its last element, unless that is a major version."""
    *_, parent, last = package.split("/")
    return parent if re.fullmatch(r"v\d+", last) else last


def _go(source: Path, *arguments: str, on_package: Callable[[], None] = lambda: None) -> list[str]:
    """Run Go in a module's folder and return what it prints; -v names a package on standard error once it is built."""
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    command = ["nice", go_command(), *arguments]  # nice: the machine stays usable for the minutes that a build takes
    errors: deque[str] = deque(maxlen=20)
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            command, cwd=source, env=environment, stdout=output, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stderr
        for line in process.stderr:
            errors.append(line)
            on_package()
        if process.wait():
            raise ClusterError(f"`go {arguments[0]}` failed in {source}:\n{''.join(errors)}")
        output.seek(0)
        return output.read().split()
