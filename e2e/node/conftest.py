"""kvloop, installed once for the tests of the tier, and a namespace with it for each."""

from collections.abc import Iterator

import pytest

from e2e.cluster import Client
from e2e.node.harness import SECRET, NodeSite, Platform, install, opened


@pytest.fixture(scope="session")
def platform(node_cluster: Client) -> Platform:
    """The operator in its pod, and images for the others."""
    return install(node_cluster)


@pytest.fixture
def site(platform: Platform) -> Iterator[NodeSite]:
    """A namespace of the test's own."""
    with opened(platform) as site:
        yield site


@pytest.fixture(scope="session")
def fleet(platform: Platform) -> Iterator[NodeSite]:
    """`chat` reuses, `one-way` may not, in `unguarded` the plugin is kept out; two have no prefill engines.

    They stand side by side in one namespace.
    """
    none = {"replicas": 0, "gpus": 0}
    with opened(platform) as site:
        slow = site.engine(ENGINESIM_SPEED_MODEL="qwen3-32b", ENGINESIM_TIME_SCALE="1")
        site.create("chat")
        site.create("one-way", engine=slow, transfer={"fabric": "UCX", "bidirectional": False})
        site.create("unguarded", engine=site.engine(VLLM_PLUGINS="lora_filesystem_resolver", TEAM_TOKEN=SECRET))
        site.create("decode-only", prefill=none)
        site.create("strict", prefill=none, router={"whenNoPrefill": "Fail"})
        for name in ("chat", "one-way", "unguarded", "decode-only", "strict"):
            site.wait_ready(name)
        yield site
