"""All of it at once: operator, router and two real vLLM engines, in pods of a real node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.cluster import Client as Cluster
from e2e.cluster import eventually
from e2e.demo import cold
from e2e.engine import pods
from e2e.node.harness import MODEL, NodeSite, Talk, install, metrics, opened
from kvloop.cli.load import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.engine.fleet import Fleet
    from e2e.site import Body

pytestmark = pytest.mark.engine

READY_S = 600
TURNS = 6  # with fewer than five follow-ups the operator does not judge
SOURCE = {"source": "external_kv_transfer"}


@pytest.fixture(scope="module")
def site(node_cluster: Cluster, fleet: Fleet) -> Iterator[NodeSite]:
    """A namespace with one custom resource, whose engines are ready."""
    fleet.stop()  # their memory is needed
    platform = install(node_cluster)
    with opened(platform, "privileged") as opened_site:
        opened_site.create(**pods.spec(platform.images["enginesim"], MODEL))
        opened_site.wait_ready(timeout_s=READY_S)
        yield opened_site


async def test_a_streamed_conversation_returns_its_kv_to_prefill(site: NodeSite) -> None:
    ((prefill,), (decode,)) = (site.pods(role) for role in ("prefill", "decode"))
    for pod, role in ((prefill, "kv_producer"), (decode, "kv_consumer")):
        (told,) = metrics(pod).labels("kvloop_engine_info")
        assert (told["active"], told["role"], told["vllm_version"]) == ("1", role, "0.32.0")

    async with site.client() as client:
        talk = Talk(client, "an agent")
        shared = 0
        for _ in range(TURNS):
            before = read(prefill)
            turn = await talk.say()
            assert read(prefill) - before >= shared
            shared = turn.prompt_tokens // 32 * 32  # the reply's text may come back as other tokens
    assert eventually(lambda: metrics(prefill).sum("vllm:nixl_bytes_transferred_sum") > 0)

    async with Client(f"http://{prefill['status']['podIP']}:8000", MODEL) as engine:
        assert not await cold.differences(engine, talk.turns)

    counters = site.reuse().counters
    assert (counters.turns, counters.reused_turns, counters.failed_transfers) == (TURNS, TURNS - 1, 0)
    assert counters.reused_tokens == read(prefill)
    site.wait_for("KVTransferVerified", "True", timeout_s=90)


def read(pod: Body) -> float:
    """Tokens whose KV an engine has read from another one."""
    return metrics(pod).sum("vllm:prompt_tokens_by_source_total", **SOURCE)
