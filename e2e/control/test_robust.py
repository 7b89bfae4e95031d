"""Idle, killed, many at once: the operator at rest writes nothing, and what interrupts it leaves nothing behind."""

import time

import pytest

from e2e.cluster import eventually
from e2e.control.harness import ACCOUNT, Audit, Site, settled
from e2e.site import resource
from kvloop.api.labels import PLURAL

pytestmark = pytest.mark.control


def create(site: Site, count: int) -> list[str]:
    names = [f"chat-{number}" for number in range(count)]
    site.cluster.apply([resource(name, site.namespace) for name in names], site.namespace)
    return names


def all_ready(site: Site) -> bool:
    ready = [
        condition["status"]
        for item in site.items(PLURAL)
        for condition in item["status"].get("conditions", [])
        if condition["type"] == "Ready"
    ]
    return bool(ready) and set(ready) == {"True"}


def test_twenty_idle_resources_cause_no_write_in_a_minute(site: Site) -> None:
    audit = site.audit()
    create(site, 20)
    eventually(lambda: all_ready(site), timeout_s=180)
    settled(audit, quiet_s=5)
    audit, everywhere = site.audit(), Audit(site.cluster)
    time.sleep(60)  # the minute itself is what is asked for
    assert not audit.writes()
    beats = [each for each in everywhere.requests() if each["verb"] == "patch" and each["objectRef"]["name"] == ACCOUNT]
    assert 1 <= len(beats) <= 3, "its own Lease tells that it is alive, twice a minute"
    reads = [each for each in audit.requests() if each["verb"] in {"get", "list"}]
    assert not reads


def test_killed_at_any_point_it_goes_on_where_it_was(site: Site) -> None:
    """SIGKILL after so many writes; then all is there, once, and a further restart writes nothing."""
    for writes in (3, 11, 40):
        audit = site.audit()
        names = [f"chat-{writes}-{number}" for number in range(3)]
        site.cluster.apply([resource(name, site.namespace) for name in names], site.namespace)
        eventually(lambda: audit.writes().total() >= writes, interval_s=0.005)  # noqa: B023 (called at once)
        site.operator.kill()
        site.operator.start()
        for name in names:
            site.wait_for("Ready", "True", name=name)
    uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in site.items(PLURAL)}
    sizes = set()
    for name, uid in uids.items():
        found = site.children(name)
        assert {child["metadata"]["ownerReferences"][0]["uid"] for child in found.values()} == {uid}
        sizes.add(len(found))
    assert len(sizes) == 1, "every resource has the same children"
    settled(site.audit())
    audit = site.audit()
    site.operator.kill()
    site.operator.start()
    settled(audit)
    assert not audit.writes()


def test_a_deletion_that_nobody_saw_is_noticed(site: Site) -> None:
    """While the operator is held still, its watch loses its place; what went meanwhile is made anew all the same."""
    site.create()
    site.wait_for("Ready", "True")
    uid = site.get("service", "chat")["metadata"]["uid"]
    with site.operator.frozen():
        site.kubectl("delete", "service", "chat")
    eventually(lambda: site.get("service", "chat")["metadata"]["uid"] != uid)


def test_it_stops_at_once_when_asked(site: Site) -> None:
    site.create()
    site.wait_for("Ready", "True")
    begin = time.monotonic()
    assert site.operator.terminate() == 0
    assert time.monotonic() - begin < 10
    site.operator.start()
