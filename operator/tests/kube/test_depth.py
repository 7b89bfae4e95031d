"""Objects of an API server may be nested deeper than Python reads by itself; what users write may not."""

import json
import sys

import pytest

from kvloop.kube.depth import any_depth

DEEP = '{"a":' * 9_999 + "1" + "}" * 9_999


def test_what_the_api_server_takes_is_read_and_the_limit_is_as_before() -> None:
    before = sys.getrecursionlimit()
    with any_depth():
        json.loads(DEEP)
    assert sys.getrecursionlimit() == before
    with pytest.raises(RecursionError):
        json.loads(DEEP)
