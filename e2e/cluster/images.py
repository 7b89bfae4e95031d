"""Write container images without a container engine: an OCI archive is a tar file of layers and small documents."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.cluster.binaries import ensure

TEST_IMAGE = "localhost/kvloop/testpod:local"
"""The program of gomod/testpod and nothing else: `pause` (the default), or `serve` on port 8080."""

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(archive: Path, reference: str, layers: Sequence[Path], config: Mapping[str, Any]) -> None:
    """Write an OCI archive that `load_image` takes.

    Args:
        archive: The file to write.
        reference: The image's whole name, with its registry and tag.
        layers: Tar files, not compressed, the lowest first.
        config: The `config` part of an OCI image configuration: Entrypoint, Cmd, Env, User, WorkingDir and so on.
    """
    with tarfile.open(archive, "w") as out:
        descriptors = [_add_file(out, layer, "application/vnd.oci.image.layer.v1.tar") for layer in layers]
        image = {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [descriptor["digest"] for descriptor in descriptors]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _add_json(out, image, "application/vnd.oci.image.config.v1+json"),
            "layers": descriptors,
        }
        annotations = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}
        index = {"schemaVersion": 2, "manifests": [_add_json(out, manifest, _MANIFEST) | {"annotations": annotations}]}
        _add(out, "index.json", json.dumps(index).encode())
        _add(out, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


def write_test_image(archive: Path) -> None:
    """Write TEST_IMAGE, which is also what holds a pod's namespaces."""
    program = ensure(["testpod"])["testpod"]
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as out:
        _add(out, "testpod", program.read_bytes(), mode=0o755)
    write_image(archive, TEST_IMAGE, [layer], {"Entrypoint": ["/testpod"], "Cmd": ["pause"], "User": "65532:65532"})
    layer.unlink()


def _add_json(out: tarfile.TarFile, document: Mapping[str, Any], media_type: str) -> dict[str, Any]:
    content = json.dumps(document, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()
    _add(out, f"blobs/sha256/{digest}", content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _add_file(out: tarfile.TarFile, file: Path, media_type: str) -> dict[str, Any]:
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    out.add(file, f"blobs/sha256/{digest}", filter=_anonymous)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": file.stat().st_size}


def _add(out: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    out.addfile(entry, io.BytesIO(content))


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without owner and time, so that the same content gives the same archive."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
