"""The test image, for pods that need no more than a process."""

import shutil
import tempfile
from pathlib import Path

from e2e.cluster.binaries import ensure
from e2e.images import oci

TEST_IMAGE = "localhost/kvloop/testpod:local"
"""The program of gomod/testpod and nothing else: `pause` (the default), or `serve` on port 8080."""


def write_test_image(archive: Path) -> None:
    """Write TEST_IMAGE, which is also what holds a pod's namespaces, as an archive for `load_image`."""
    program = ensure(["testpod"])["testpod"]
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        shutil.copy(program, tree / "testpod")
        layer = oci.write_layer(tree, Path(folder))
        config = {"Entrypoint": ["/testpod"], "Cmd": ["pause"], "User": "65532:65532"}
        oci.write_archive({TEST_IMAGE: oci.manifest([layer], config)}, archive)
