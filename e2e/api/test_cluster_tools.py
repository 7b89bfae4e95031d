"""What the embedded cluster is made of: builds, daemons, the command line, and clusters of other makes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import Client, Cluster, ClusterError, ExistingCluster, KindCluster, attach, control_plane, eventually
from e2e.cluster import system as machine
from e2e.cluster.network import free_port
from e2e.cluster.processes import Processes
from e2e.cluster.system import leased

pytestmark = pytest.mark.api


@pytest.fixture
def name() -> Iterator[str]:
    with leased("test-tools-") as name:
        yield name


def test_two_builders_at_once_share_one_build(tmp_path: Path) -> None:
    code = "from e2e.cluster.binaries import ensure; print(*ensure(['testpod']).values())"
    environment = os.environ | {"KVLOOP_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    builders = [subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    outputs = [builder.communicate() for builder in builders]
    (path,) = {output.strip() for output, _ in outputs}
    assert subprocess.run([path, "hostname"], capture_output=True, check=True).stdout
    assert sum("building testpod" in errors for _, errors in outputs) == 1
    assert [entry.name for entry in (tmp_path / "bin").iterdir()] == [Path(path).parent.name]


def test_daemons_are_found_again_and_others_are_left_alone(tmp_path: Path) -> None:
    Processes(tmp_path).start("sleeper", ["sleep", "1000"])
    found = Processes(tmp_path)
    assert found.pid("sleeper")
    found.stop("sleeper")
    assert (found.pid("sleeper"), found.names()) == (None, [])

    with subprocess.Popen(["sleep", "1000"]) as foreign:
        record = {"pid": foreign.pid, "start": "1", "boot": Path("/proc/sys/kernel/random/boot_id").read_text()}
        (tmp_path / "run" / "old.json").write_text(json.dumps(record))
        assert found.pid("old") is None
        found.stop("old")
        assert foreign.poll() is None
        foreign.kill()


def test_a_daemon_that_was_killed_is_known_to_be_dead(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("sleeper", ["sh", "-c", "echo output; exec sleep 1000"])
    eventually(lambda: processes.tail("sleeper") == "output")
    process = processes.pid("sleeper")
    assert process
    os.kill(process, signal.SIGKILL)
    assert eventually(lambda: processes.pid("sleeper") is None)
    assert processes.names() == ["sleeper"]


def test_ports_and_names_are_given_out_once() -> None:
    assert len({free_port() for _ in range(20)}) == 20
    with leased("test-lease-") as first, leased("test-lease-") as second:
        assert first != second
    with leased("test-lease-") as third:
        assert third == first


def test_an_existing_cluster_is_used_and_left_alone(api_cluster: Client, name: str) -> None:
    existing = ExistingCluster(name, api_cluster.kubeconfig)
    existing.up()
    found = attach(name)
    assert isinstance(found, ExistingCluster)
    assert found.get("namespace", "default") == api_cluster.get("namespace", "default")
    with pytest.raises(ClusterError, match="registry"):
        found.load_image(Path("image.tar"))
    found.down()
    assert not found.folder.exists()
    assert api_cluster.get("namespace", "default")


def test_kind_is_asked_for_the_same_things(
    api_cluster: Client, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = tmp_path / "kind"  # notes what it is told, and gives out the API server that we have
    kind.write_text(f"""#!/bin/sh
echo "$@" >>{tmp_path}/said
for argument; do case $argument in --kubeconfig=*)
    mkdir -p "$(dirname "${{argument#*=}}")" && cp {api_cluster.kubeconfig} "${{argument#*=}}";;
esac; done
""")
    kind.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with KindCluster(name) as cluster:
        found = attach(name)
        assert isinstance(found, KindCluster)
        assert found.get("namespace", "default")
        found.load_image(Path("image.tar"))
        create = f"create cluster --kubeconfig={cluster.kubeconfig} --wait=120s --name={name}"
    said = (tmp_path / "said").read_text().splitlines()
    delete = f"delete cluster --name={name}"
    assert said == [delete, create, f"load image-archive image.tar --name={name}", delete]
    assert not cluster.folder.exists()


def test_what_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=f"e2e.cluster up --name {name}"):
        attach(name)
    with pytest.raises(ClusterError, match="cannot be a cluster's name"):
        Cluster("../elsewhere")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ClusterError, match="go install"):
        KindCluster(name).up()
    with pytest.raises(ClusterError, match="containerd"):
        machine.require_node_packages()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="needs root"):
        machine.require_node_packages()


def test_a_cluster_that_cannot_start_says_why_and_stops_its_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(name, "api")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(control_plane, "free_port", lambda: taken.getsockname()[1])
        with pytest.raises(ClusterError, match="address already in use"):
            cluster.up()
    assert not any(cluster.daemons().values())
    cluster.down()


def test_command_line(name: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "e2e.cluster", *arguments, f"--name={name}"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert (run("status").returncode, run("down").returncode) == (1, 0)
    up = run("up", "--profile=api")
    kubeconfig = run("kubeconfig").stdout.strip()
    assert up.stdout.strip() == f"export KUBECONFIG={kubeconfig}"
    status = run("status")
    assert (status.returncode, "kube-apiserver" in status.stdout) == (0, True)
    assert run("up", "--profile=api").stderr == ""  # nothing is started again
    process = Cluster(name).daemons()["kube-apiserver"]
    assert process
    os.kill(process, signal.SIGKILL)
    assert eventually(lambda: run("status").returncode == 1)
    assert run("up", "--profile=api").returncode == 0
    assert run("load", str(Path(__file__))).returncode == 1
    assert run("down").returncode == 0
    assert not Path(kubeconfig).exists()
