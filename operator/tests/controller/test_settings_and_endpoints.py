"""Flags and environment; /metrics and /healthz."""

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from kvloop.controller.canary import DeafError
from kvloop.controller.endpoints import Endpoints
from kvloop.controller.settings import Settings, parse


def test_the_defaults() -> None:
    assert parse([], {}) == Settings()


def test_a_flag_comes_before_the_environment() -> None:
    environment = {"KVLOOP_WORKERS": "3", "KVLOOP_LOG_FORMAT": "text", "POD_NAME": "pod-7"}
    settings = parse(["--workers=5"], environment)
    assert (settings.workers, settings.log_format, settings.pod_name) == (5, "text", "pod-7")


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [(["--namespace=a", "--namespace=b"], {}), ([], {"KVLOOP_NAMESPACE": "a,b"})],
)
def test_namespaces(arguments: list[str], environment: dict[str, str]) -> None:
    settings = parse(arguments, environment)
    assert settings.namespace == ("a", "b")
    assert settings.canary_namespace == "a", "the operator's own is not watched"


def test_prometheus_namespaces() -> None:
    assert parse(["--scrape-namespace=a"], {"KVLOOP_SCRAPE_NAMESPACE": "b,c"}).scrape_namespace == ("a",)
    assert parse([], {"KVLOOP_SCRAPE_NAMESPACE": "b,c"}).scrape_namespace == ("b", "c")


def test_the_lease_is_in_the_operators_own_namespace_if_all_are_served() -> None:
    assert parse([], {"POD_NAMESPACE": "ops"}).canary_namespace == "ops"


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--workers=many"], {}),
        (["--workers=0"], {}),
        ([], {"KVLOOP_WORKERS": "many"}),
        ([], {"KVLOOP_LOG_FORMAT": "xml"}),
        (["--unknown"], {}),
    ],
)
def test_what_is_not_understood_ends_the_program(
    arguments: list[str], environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(arguments, environment)
    assert end.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_help_tells_every_setting_with_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], {})
    text = " ".join(capsys.readouterr().out.split())
    for name in Settings.__dataclass_fields__:
        assert "--" + name.replace("_", "-") in text
    assert text.count("(default: ") == len(Settings.__dataclass_fields__)
    assert "[POD_NAMESPACE]" in text


async def test_metrics_and_health() -> None:
    registry = CollectorRegistry()
    Gauge("kvloop_test", "A test.", registry=registry).set(7)
    age = 12.34

    def check() -> float:
        if age > 90:
            raise DeafError("nothing came back")
        return age

    endpoints = Endpoints(registry, check, (0,))
    port, *_ = await endpoints.start()
    try:
        async with aiohttp.ClientSession(f"http://localhost:{port}") as session:
            async with session.get("/metrics") as answer:
                assert "kvloop_test 7.0" in await answer.text()
                assert answer.content_type == "text/plain"
            async with session.get("/healthz") as answer:
                assert (answer.status, await answer.json()) == (200, {"canaryAgeSeconds": 12.3})
            age = 91
            async with session.get("/healthz") as answer:
                assert (answer.status, await answer.json()) == (503, {"error": "nothing came back"})
    finally:
        await endpoints.stop()
