"""How deafness is noticed: by a Lease that does not come back, and by a list that knows more than the watches."""

import pytest

from kvloop.controller.audit import Audit
from kvloop.controller.cache import Cache, Key
from kvloop.controller.canary import Canary, DeafError
from kvloop.kube.errors import ExpiredError, ForbiddenError, UnavailableError
from kvloop.kube.kinds import CUSTOM_RESOURCE, POD

from .doubles import KEY, Body, Clock, MemoryKube, pod, resource


@pytest.fixture
def canary(kube: MemoryKube, clock: Clock) -> Canary:
    return Canary(kube, "kvloop-system", "me", 30, clock)


async def test_a_write_that_comes_back_proves_hearing(canary: Canary, kube: MemoryKube, clock: Clock) -> None:
    for _ in range(5):
        await canary.sing()
        canary.hear(kube.objects["Lease", "kvloop-operator"])
        clock.now += 30
        assert canary.check() == 30


async def test_silence_for_three_periods_is_deafness(canary: Canary, clock: Clock) -> None:
    for _ in range(3):
        await canary.sing()
        clock.now += 30
        canary.check()
    clock.now += 1
    with pytest.raises(DeafError, match="91 s"):
        canary.check()


async def test_the_writes_of_another_operator_prove_nothing(canary: Canary, clock: Clock) -> None:
    await canary.sing()
    clock.now += 91
    canary.hear({"spec": {"renewTime": "2030-01-01T00:00:00.000000Z"}})
    canary.hear({})
    with pytest.raises(DeafError):
        canary.check()


async def test_a_late_return_heals(canary: Canary, kube: MemoryKube, clock: Clock) -> None:
    await canary.sing()
    first = kube.objects["Lease", "kvloop-operator"]
    clock.now += 60
    await canary.sing()
    clock.now += 40
    canary.hear(kube.objects["Lease", "kvloop-operator"])
    assert canary.check() == 40
    canary.hear(first)
    assert canary.check() == 40, "an older one says nothing new"


async def test_a_write_that_fails_is_no_error_of_its_own(canary: Canary, kube: MemoryKube) -> None:
    kube.errors["Lease", "kvloop-operator"] = UnavailableError("no connection")
    await canary.sing()


class Bench:
    def __init__(self, kube: MemoryKube) -> None:
        self.kube = kube
        self.cache = Cache()
        self.changed: list[Key] = []
        self.audit = Audit(kube, self.cache, (CUSTOM_RESOURCE, POD), (), self.changed.append)

    def there(self, *bodies: Body) -> None:
        self.kube.objects = {(body["kind"], body["metadata"]["name"]): body for body in bodies}


@pytest.fixture
def bench(kube: MemoryKube, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("kvloop.controller.audit.FILL_RECHECK_SECONDS", 0.01)
    return Bench(kube)


async def test_what_went_unseen_is_dropped_and_told(bench: Bench) -> None:
    for body in (resource(), pod("p"), pod("q")):
        bench.cache.see(body)
    bench.there(resource(), pod("q"))
    assert await bench.audit.compare() == {}
    assert bench.changed == [KEY]
    assert bench.cache.versions("Pod") == {"uid-q": 1}


async def test_what_the_watches_did_not_bring_is_known(bench: Bench) -> None:
    bench.cache.see(pod("p", version=1))
    bench.there(pod("p", version=2), pod("q", version=1))
    assert await bench.audit.compare() == {"uid-p": 2, "uid-q": 1}


async def test_watches_that_bring_nothing_are_dead(bench: Bench) -> None:
    bench.there(pod("p"))
    with pytest.raises(DeafError):
        await bench.audit.check()


async def test_an_object_that_goes_meanwhile_is_no_proof(bench: Bench) -> None:
    bench.there(pod("p"))
    listing, calls = bench.kube.metadata, []

    def vanishing(*arguments: str) -> object:
        calls.append(arguments)
        if len(calls) > 2:  # a list of each kind is one look
            bench.there()
        return listing(*arguments)

    bench.kube.metadata = vanishing  # type: ignore[method-assign,assignment]  # the same, with an eye on the calls
    await bench.audit.check()


async def test_filling_waits_for_the_watches(bench: Bench) -> None:
    bench.there(resource(), pod("p"))
    listing = bench.kube.metadata

    def feeding(*arguments: str) -> object:
        for body in (resource(), pod("p")):
            bench.cache.see(body)
        return listing(*arguments)

    bench.kube.metadata = feeding  # type: ignore[method-assign,assignment]  # the same, with a watch beside it
    await bench.audit.fill()


FORBIDDEN = ForbiddenError('pods is forbidden: User "x" cannot list resource "pods"', 403)
"""As an API server answers that has just begun, too."""


@pytest.mark.parametrize("error", [ExpiredError("too old", 410), UnavailableError("no connection"), FORBIDDEN])
async def test_a_list_that_did_not_end_proves_nothing(bench: Bench, error: Exception) -> None:
    bench.cache.see(pod("p"))

    def failing(*_: str) -> object:
        raise error

    bench.kube.metadata = failing  # type: ignore[method-assign,assignment]  # a list that never ends
    await bench.audit.check()
    assert bench.cache.versions("Pod")
    if error is FORBIDDEN:
        with pytest.raises(ForbiddenError):
            await bench.audit.fill()
