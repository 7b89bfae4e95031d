"""OCI images, written as the image and image layout specifications ask, without any engine.

Equal content gives equal bytes: entries are sorted, and times and owners are constant. Layers are not compressed: they
only go from a cache on this machine into its containerd.
"""

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # what Go, and so OCI, calls them


@dataclass(frozen=True)
class Layer:
    """A tar file whose name is its digest."""

    tar: Path

    @property
    def digest(self) -> str:
        return self.tar.stem

    @property
    def size(self) -> int:
        """Bytes, unpacked."""
        return self.tar.stat().st_size


@dataclass(frozen=True)
class Manifest:
    """An image: its layers and the documents that describe them."""

    layers: tuple[Layer, ...]
    config: bytes

    @property
    def document(self) -> bytes:
        return _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(_CONFIG, self.config),
                "layers": [
                    {"mediaType": _LAYER, "digest": f"sha256:{layer.digest}", "size": layer.size}
                    for layer in self.layers
                ],
            }
        )

    @property
    def digest(self) -> str:
        return _sha256(self.document)


def manifest(layers: Iterable[Layer], config: dict[str, Any]) -> Manifest:
    """Put layers, the lowest first, together with `config`: User, Env, Entrypoint, Labels and the like."""
    layers = tuple(layers)
    document = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
    }
    return Manifest(layers, _json(document))


def write_layer(tree: Path, folder: Path) -> Layer:
    """Pack the content of `tree` as a layer in `folder`: all owned by root, and others write only where sticky."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".layer-", delete=False) as file:
        hashing = _Hashing(file)
        with tarfile.open(fileobj=hashing, mode="w|", bufsize=1 << 20) as tar:
            for path in sorted(tree.rglob("*")):
                _add(tar, path, path.relative_to(tree).as_posix())
    return Layer(Path(file.name).rename(folder / f"{hashing.digest}.tar"))


def write_archive(images: dict[str, Manifest], target: Path) -> None:
    """Write one OCI layout as a tar file with all the images, by reference; a layer that several have is in it once."""
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX,
        "manifests": [
            _descriptor(_MANIFEST, image.document)
            | {"annotations": {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}}
            for reference, image in images.items()
        ],
    }
    layers = {layer.digest: layer for image in images.values() for layer in image.layers}
    documents = {
        _sha256(document): document for image in images.values() for document in (image.config, image.document)
    }
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".archive-") as temporary:
        archive = Path(temporary, target.name)
        with tarfile.open(archive, "w") as tar:
            _add_bytes(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
            _add_bytes(tar, "index.json", _json(index))
            for digest, document in sorted(documents.items()):
                _add_bytes(tar, f"blobs/sha256/{digest}", document)
            for digest, layer in sorted(layers.items()):
                _add(tar, layer.tar, f"blobs/sha256/{digest}")
        archive.rename(target)


class _Hashing(io.RawIOBase):
    """Passes on what is written, and knows its SHA-256."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        self._sha256.update(data)
        return self._out.write(data)

    @property
    def digest(self) -> str:
        return self._sha256.hexdigest()


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    info = tar.gettarinfo(path, name)
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    sticky = info.mode & 0o1000  # /tmp, whose permissions stay
    info.mode = info.mode if sticky else 0o755 if info.isdir() or info.mode & 0o100 else 0o644
    if info.isreg():
        with path.open("rb") as content:
            tar.addfile(info, content)
    else:
        tar.addfile(info)


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _descriptor(media_type: str, document: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{_sha256(document)}", "size": len(document)}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
