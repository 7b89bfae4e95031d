"""Rollouts with the cluster's own StatefulSet controllers and simulated pods."""

import pytest

from e2e.cluster import eventually
from e2e.control.harness import Site, settled
from e2e.control.pods import UNREADY, engine, pods, set_ready

pytestmark = pytest.mark.control


def names(site: Site, role: str = "prefill", **annotations: str) -> set[str]:
    """Engines with these annotations."""
    wanted = {key.replace("_", "-"): value for key, value in annotations.items()}
    return {
        pod["metadata"]["name"]
        for pod in pods(site, role)
        if wanted.items()
        <= {key.rpartition("/")[2]: value for key, value in pod["metadata"]["annotations"].items()}.items()
    }


def test_as_many_at_a_time_as_the_spec_allows(site: Site) -> None:
    """A StatefulSet by itself replaces one, and waits until it is ready."""
    site.create(prefill=engine(replicas=4) | {"maxUnavailable": 3}, decode=engine(replicas=0))
    site.wait_for("Ready", "True")
    site.patch({"prefill": {"podTemplate": UNREADY}})
    new = {f"chat-prefill-{number}" for number in (1, 2, 3)}
    eventually(lambda: names(site, fake_ready="false") == new)
    settled(site.audit())
    assert names(site, fake_ready="false") == new
    assert site.status()["prefill"]["summary"] == "1/4"
    for name in new:
        set_ready(site, name)
    eventually(lambda: "chat-prefill-0" in names(site, fake_ready="false"))
    set_ready(site, "chat-prefill-0")
    site.wait_for("Ready", "True")
