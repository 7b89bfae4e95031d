"""The small helpers of what is observed."""

import pytest

from kvloop.plan.observed import Child, ChildRef, Observed, Pod, Workload


@pytest.mark.parametrize(
    ("name", "ordinal"), [("chat-prefill-0", 0), ("chat-prefill-12", 12), ("chat-router-7d9-x2b", 0), ("one", 0)]
)
def test_ordinal(name: str, ordinal: int) -> None:
    assert Pod(name, "uid", "prefill").ordinal == ordinal


def test_pods_of_a_component_in_order_of_their_numbers() -> None:
    names = ("chat-prefill-10", "chat-prefill-2", "chat-prefill-9")
    pods = [Pod(name, name, "prefill") for name in names]
    others = [Pod("chat-decode-0", "d", "decode"), Pod("chat-prefill-1", "gone", "prefill", deleting=True)]
    observed = Observed(0.0, pods=(*pods, *others))
    assert [pod.ordinal for pod in observed.pods_of("prefill")] == [2, 9, 10]


def test_workload_of_a_child_that_may_be_absent() -> None:
    ref = ChildRef("StatefulSet", "chat-prefill")
    observed = Observed(0.0, children={ref: Child(ref, "uid", None, workload=Workload(3))})
    assert observed.workload("StatefulSet", "chat-prefill") == Workload(3)
    assert observed.workload("StatefulSet", "chat-decode") is None
