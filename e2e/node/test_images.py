"""The images as they are built without a Docker engine: what is in them, and that they run as a cautious pod wants."""

import importlib.util
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Client, eventually
from e2e.images import Image, build
from e2e.images.builder import Name

pytestmark = pytest.mark.node

SITE = "usr/local/lib/python3.11/dist-packages"
COMMANDS = {Name.OPERATOR: "kvloop-operator", Name.ROUTER: "kvloop-router", Name.ENGINESIM: "vllm"}
SIZE_LIMIT = {Name.OPERATOR: 200e6, Name.ROUTER: 120e6}  # bytes, unpacked
UNCHECKED_HASH = (1).to_bytes(4, "little")  # flags of PEP 552: never compared with the source


@pytest.fixture(scope="module")
def images() -> dict[str, Image]:
    return build()


@pytest.fixture(scope="module")
def roots(images: dict[str, Image], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The root file system of each image, unpacked."""
    folder = tmp_path_factory.mktemp("roots")
    return {name: _unpack(image, folder / name) for name, image in images.items()}


def _unpack(image: Image, root: Path) -> Path:
    root.mkdir(mode=0o755)
    with tarfile.open(image.tar) as archive:

        def blob(descriptor: dict[str, Any]) -> Any:
            return archive.extractfile(f"blobs/{descriptor['digest'].replace(':', '/')}")

        index = json.load(archive.extractfile("index.json") or pytest.fail("no index"))
        (found,) = (
            entry
            for entry in index["manifests"]
            if entry["annotations"]["org.opencontainers.image.ref.name"] == image.ref
        )
        for layer in json.load(blob(found))["layers"]:
            with tarfile.open(fileobj=blob(layer)) as tar:
                tar.extractall(root, filter="fully_trusted")  # noqa: S202 - our own archive
    return root


def _chroot(root: Path, *command: str) -> str:
    """Run a command of an image as its user, and return what it prints."""
    done = subprocess.run(
        ["chroot", "--userspec=65532:65532", root, *command],
        env={"PATH": "/usr/local/bin:/usr/bin:/usr/sbin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", Name)
def test_the_command_starts_and_every_library_is_there(roots: dict[str, Path], name: Name) -> None:
    assert "usage" in _chroot(roots[name], COMMANDS[name], "--help").lower()
    extensions = (roots[name] / "usr/lib/python3.11/lib-dynload").glob("*.so")
    packages = (roots[name] / SITE).glob("*/__init__.py")
    modules = sorted({path.name.partition(".")[0] for path in extensions} | {path.parent.name for path in packages})
    _chroot(roots[name], "python3", "-c", f"import {', '.join(modules)}")


@pytest.mark.parametrize("name", Name)
def test_nothing_else_can_be_run(roots: dict[str, Path], name: Name) -> None:
    folders = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin")
    programs = {path.name for folder in folders for path in (roots[name] / folder).glob("*")}
    assert programs == {"python3", "python3.11", COMMANDS[name]}
    assert not list((roots[name] / SITE).glob("pip*"))


def test_each_image_holds_its_own_packages_only(roots: dict[str, Path]) -> None:
    packages = {
        name: {path.parent.name for path in (root / SITE).glob("*/__init__.py")} for name, root in roots.items()
    }
    assert packages[Name.OPERATOR] >= {"kvloop", "kopf", "kubernetes", "jinja2"}
    assert packages[Name.ROUTER] >= {"kvloop", "aiohttp", "orjson"}
    assert not packages[Name.ROUTER] & {"kopf", "kubernetes", "jinja2", "numpy", "e2e"}
    assert packages[Name.ENGINESIM] >= {"e2e", "aiohttp", "numpy"}
    assert not packages[Name.ENGINESIM] & {"kvloop", "kopf", "kubernetes"}


@pytest.mark.parametrize(("name", "limit"), SIZE_LIMIT.items())
def test_images_are_small(images: dict[str, Image], roots: dict[str, Path], name: Name, limit: float) -> None:
    unpacked = sum(path.lstat().st_size for path in roots[name].rglob("*"))
    assert max(unpacked, images[name].size) < limit


@pytest.mark.parametrize("name", Name)
def test_all_is_compiled_and_nobody_can_write_but_to_tmp(roots: dict[str, Path], name: Name) -> None:
    on_demand = ("kubernetes/client/api", "kubernetes/client/models", "kubernetes/aio")
    for source in (roots[name] / SITE).rglob("*.py"):
        if not source.relative_to(roots[name] / SITE).as_posix().startswith(on_demand):
            assert Path(importlib.util.cache_from_source(source)).read_bytes()[4:8] == UNCHECKED_HASH, source
    writable = [path for path in roots[name].rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022]
    assert {path.relative_to(roots[name]).as_posix() for path in writable} == {"tmp", "var/tmp"}


def test_the_same_source_gives_the_same_image(images: dict[str, Image]) -> None:
    assert build([Name.ROUTER])[Name.ROUTER].ref == images[Name.ROUTER].ref


def test_pods_run_them_as_nobody_on_a_read_only_root(
    node_cluster: Client, namespace: str, images: dict[str, Image]
) -> None:
    (archive,) = {image.tar for image in images.values()}
    node_cluster.load_image(archive)
    whoami = ["python3", "-c", "import os; print(os.getuid(), os.getgid(), os.access('/', os.W_OK))"]
    containers = [
        {
            "name": f"{name}-{what}",
            "image": image.ref,
            "imagePullPolicy": "Never",
            "command": command,
            "securityContext": {
                "runAsNonRoot": True,
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        for name, image in images.items()
        for what, command in (("help", [COMMANDS[Name(name)], "--help"]), ("whoami", whoami))
    ]
    spec = {"restartPolicy": "Never", "containers": containers}
    node_cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "images"}, "spec": spec}, namespace)
    ended = eventually(lambda: _ended(node_cluster.get("pod", "images", namespace)), timeout_s=60)
    for name in images:
        logs = {
            what: node_cluster.kubectl("logs", "images", f"--container={name}-{what}", f"--namespace={namespace}")
            for what in ("help", "whoami")
        }
        assert "usage" in logs["help"].lower()
        assert logs["whoami"].split() == ["65532", "65532", "False"]
    assert set(ended.values()) == {0}


def _ended(pod: dict[str, Any]) -> dict[str, int]:
    """Exit codes by container, once all have ended."""
    states = {status["name"]: status["state"] for status in pod["status"].get("containerStatuses", ())}
    if not all("terminated" in state for state in states.values()):
        return {}
    return {name: state["terminated"]["exitCode"] for name, state in states.items()}
