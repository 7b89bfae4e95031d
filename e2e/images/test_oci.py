import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from e2e.images.oci import Layer, manifest, write_archive, write_layer


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root file system with one of each kind of entry."""
    root = tmp_path / "tree"
    (root / "usr" / "bin").mkdir(parents=True, mode=0o700)
    program = root / "usr" / "bin" / "python3.11"
    program.write_text("a program")
    program.chmod(0o700)
    (root / "usr" / "bin" / "python3").symlink_to("python3.11")
    (root / "secret").write_text("")
    (root / "secret").chmod(0o600)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


def _entries(layer: Layer) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(layer.tar) as tar:
        return {entry.name: entry for entry in tar.getmembers()}


def _archive(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {entry.name: content.read() for entry in tar.getmembers() if (content := tar.extractfile(entry))}


def test_a_layer_is_named_by_its_digest_and_does_not_depend_on_times(tree: Path, tmp_path: Path) -> None:
    first = write_layer(tree, tmp_path)
    (tree / "secret").touch()
    second = write_layer(tree, tmp_path)
    assert first == second
    assert first.digest == hashlib.sha256(first.tar.read_bytes()).hexdigest()
    (tree / "secret").write_text("changed")
    assert write_layer(tree, tmp_path).digest != first.digest


def test_a_layer_belongs_to_root_and_any_user_can_read_it(tree: Path, tmp_path: Path) -> None:
    entries = _entries(write_layer(tree, tmp_path))
    assert {name: oct(entry.mode) for name, entry in entries.items()} == {
        "secret": "0o644",
        "tmp": "0o1777",
        "usr": "0o755",
        "usr/bin": "0o755",
        "usr/bin/python3": "0o755",
        "usr/bin/python3.11": "0o755",
    }
    assert entries["usr/bin/python3"].linkname == "python3.11"
    assert {(entry.uid, entry.gid, entry.uname, entry.mtime) for entry in entries.values()} == {(0, 0, "", 0)}


def test_an_archive_holds_each_blob_once_and_every_reference_leads_to_its_content(tree: Path, tmp_path: Path) -> None:
    shared = write_layer(tree, tmp_path)
    (tree / "own").write_text("")
    images = {
        "docker.io/kvloop/a:1": manifest([shared], {"User": "65532"}),
        "docker.io/kvloop/b:1": manifest([shared, write_layer(tree, tmp_path)], {"User": "65532"}),
    }
    write_archive(images, tmp_path / "images.tar")
    with tarfile.open(tmp_path / "images.tar") as tar:
        names = tar.getnames()
    files = _archive(tmp_path / "images.tar")
    assert sorted(names) == sorted(files)
    assert len(files) == 2 + 2 * 2 + 2  # layout and index; manifest and configuration of each; two layers
    for name, content in files.items():
        assert not name.startswith("blobs/") or name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"

    def follow(descriptor: dict[str, Any]) -> bytes:
        content = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert len(content) == descriptor["size"]
        return content

    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    for descriptor in json.loads(files["index.json"])["manifests"]:
        image = images[descriptor["annotations"]["io.containerd.image.name"]]
        document = json.loads(follow(descriptor))
        config = json.loads(follow(document["config"]))
        assert config["config"] == {"User": "65532"}
        assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in document["layers"]]
        assert [follow(layer) for layer in document["layers"]] == [layer.tar.read_bytes() for layer in image.layers]


def test_the_digest_of_an_image_follows_its_layers_and_its_configuration(tree: Path, tmp_path: Path) -> None:
    layer = write_layer(tree, tmp_path)
    image = manifest([layer], {"User": "65532"})
    assert image.digest == manifest([layer], {"User": "65532"}).digest
    assert image.digest != manifest([layer], {"User": "0"}).digest
    assert image.digest != manifest([layer, layer], {"User": "65532"}).digest
