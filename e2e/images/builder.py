"""Builds the images from the ordinary package clients: a root file system, packages per image, and our source on top.

The two lower layers are cached by what they are made of; only the thin top layer follows the source.
"""

import hashlib
import platform
import shutil
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from e2e.cluster.progress import step
from e2e.cluster.system import cache_folder, locked
from e2e.images import oci, tools
from e2e.images.dockerfile import image_config

_REPOSITORY: Final = Path(__file__).parents[2]
_DOCKERFILE: Final = _REPOSITORY / "operator" / "Dockerfile"
_ROOTFS: Final = _REPOSITORY / "operator" / "rootfs.sh"
_SITE: Final = Path("usr/local/lib/python3.11/dist-packages")  # where Debian's Python looks for what is not Debian's
_BIN: Final = Path("usr/local/bin")
# The generated classes of the kubernetes client are read one by one on demand; compiled, they would double its 70 MB.
_COMPILE: Final = ("--invalidation-mode", "unchecked-hash", "-x", "/kubernetes/(aio/)?client/(api|models)/")
_WHEELS: Final = (  # what runs on Debian 12, whatever this machine is
    *("--python-version", "3.11", "--python-platform", f"{platform.machine()}-manylinux_2_36"),
    *("--only-binary", ":all:", "--link-mode", "copy"),
)
_KEPT_ARCHIVES: Final = 4  # another checkout or a running test may still want the one before


class Name(StrEnum):
    """The images there are: targets of the Dockerfile, and extras of pyproject.toml."""

    OPERATOR = "operator"
    ROUTER = "router"
    ENGINESIM = "enginesim"


@dataclass(frozen=True)
class Image:
    """A built image.

    Attributes:
        ref: Its name for a pod; the tag follows the content. In the archive it has the version as a tag, too.
        tar: The OCI archive that holds it, and those built with it: load it once.
        size: Bytes, unpacked.
    """

    ref: str
    tar: Path
    size: int


def build(names: Iterable[str] = Name, out: Path | None = None) -> dict[str, Image]:
    """Build images into one archive in `out`, by default in the cache.

    Raises:
        ImageError: a tool is missing or failed; says which, and what installs it.
    """
    wanted = [Name(name) for name in names]
    folder = cache_folder() / "images"
    out = out or folder / "archives"
    for path in (folder, out):
        path.mkdir(parents=True, exist_ok=True)
    root = _root(folder)
    packages = {name: _packages(name, root, folder) for name in wanted}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as temporary, step("packing kvloop's source"):
        wheel = _wheel(Path(temporary))
        version = wheel.name.split("-")[1]
        images = {
            name: oci.manifest(
                (root.layer, packages[name], _source(name, wheel, root, Path(temporary))),
                image_config(_DOCKERFILE, name, {"VERSION": version}),
            )
            for name in wanted
        }
        references = {name: f"docker.io/kvloop/{name}:dev-{image.digest[:12]}" for name, image in images.items()}
        digest = hashlib.sha256("".join(references.values()).encode()).hexdigest()
        archive = out / f"kvloop-{digest[:12]}.tar"
        released = {f"docker.io/kvloop/{name}:{version}": image for name, image in images.items()}
        if archive.exists():
            archive.touch()  # in use again
        else:
            oci.write_archive(released | {references[name]: image for name, image in images.items()}, archive)
        sizes = {name: sum(layer.size for layer in image.layers) for name, image in images.items()}
    for old in sorted(out.glob("kvloop-*.tar"), key=lambda path: path.stat().st_mtime)[:-_KEPT_ARCHIVES]:
        old.unlink(missing_ok=True)
    return {name: Image(references[name], archive, sizes[name]) for name in wanted}


@dataclass(frozen=True)
class _Root:
    """The root file system that the images share."""

    tree: Path
    layer: oci.Layer

    def compile(self, tree: Path) -> None:
        """Compile the packages of `tree` by this root's own Python, reached without chroot through its own loader."""
        (loader,) = self.tree.glob("lib/*/ld-linux*.so.*")
        libraries = f"{loader.parent}:{self.tree / 'usr' / loader.parent.relative_to(self.tree)}"
        python = [str(loader), "--library-path", libraries, str(self.tree / "usr/bin/python3.11")]
        environment = {"PYTHONHOME": str(self.tree / "usr"), "PYTHONPATH": "", "PYTHONHASHSEED": "0"}
        tools.run([*python, "-S", "-s", "-m", "compileall", "-q", "-s", str(tree), *_COMPILE, str(tree)], environment)


def _root(folder: Path) -> _Root:
    def make(entry: Path) -> None:
        tools.require_root_tools()
        with step("unpacking Debian's Python for the images"):
            tools.run(["sh", str(_ROOTFS), str(entry / "tree")])
            oci.write_layer(entry / "tree", entry)

    entry = _cached(folder, "base", _ROOTFS.read_text(), make)
    return _Root(entry / "tree", _layer(entry))


def _packages(name: Name, root: _Root, folder: Path) -> oci.Layer:
    """The layer of the packages that an image's extra asks for."""
    project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"][name]]

    def make(entry: Path) -> None:
        with step(f"installing the packages of the image {name}"):
            site = entry / "tree" / _SITE
            tools.run([tools.uv(), "pip", "install", "--quiet", "--target", str(site), *_WHEELS, *requirements])
            shutil.rmtree(site / "bin", ignore_errors=True)
            root.compile(entry / "tree")
            oci.write_layer(entry / "tree", entry)
        shutil.rmtree(entry / "tree")

    recipe = repr((root.layer.digest, *_WHEELS, *_COMPILE, *requirements))
    return _layer(_cached(folder, f"packages-{name}", recipe, make))


def _source(name: Name, wheel: Path, root: _Root, folder: Path) -> oci.Layer:
    """The layer of our own code, and the image's one command."""
    tree = folder / name
    site, binaries = tree / _SITE, tree / _BIN
    binaries.mkdir(parents=True)
    if name is Name.ENGINESIM:  # without kvloop: like a stock vLLM image, it gets the plugin from the operator
        ignore = shutil.ignore_patterns("__pycache__", "tests")
        shutil.copytree(_REPOSITORY / "e2e" / "enginesim", site / "e2e" / "enginesim", ignore=ignore)
        shutil.copy(_REPOSITORY / "e2e" / "__init__.py", site / "e2e")
        shutil.copy(_REPOSITORY / "e2e" / "images" / "vllm", binaries)
    else:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]
        module, _, function = project["scripts"][f"kvloop-{name}"].partition(":")
        script = binaries / f"kvloop-{name}"
        script.write_text(f"#!/usr/bin/python3\nfrom {module} import {function}\n\nraise SystemExit({function}())\n")
        script.chmod(0o755)
    root.compile(tree)
    return oci.write_layer(tree, folder)


def _wheel(folder: Path) -> Path:
    tools.run([tools.uv(), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(_REPOSITORY)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def _cached(folder: Path, kind: str, recipe: str, make: Callable[[Path], None]) -> Path:
    """The folder of the cache that `make` fills, once per recipe."""
    digest = hashlib.sha256(f"{platform.machine()} {recipe}".encode()).hexdigest()
    entry = folder / f"{kind}-{digest[:12]}"
    with locked(f"images-{kind}"):
        if not entry.exists():
            with tempfile.TemporaryDirectory(dir=folder, prefix=f".{kind}-") as temporary:
                made = Path(temporary) / "made"
                made.mkdir()
                make(made)
                made.rename(entry)
    return entry


def _layer(entry: Path) -> oci.Layer:
    (tar,) = entry.glob("*.tar")
    return oci.Layer(tar)
