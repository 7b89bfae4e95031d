"""pytest plugin: orders the tests by tier, cheapest first, and counts each tier in the summary.

Under pytest-xdist (`--dist loadgroup`) tests that share a cluster or engines stay together.
"""

from collections import Counter

import pytest

TIERS = ("pure", "api", "control", "node", "engine")
_GROUPS = {"api": "control plane", "control": "control plane", "node": "node", "engine": "engine"}
_TIER = "tier"


def tier_of(item: pytest.Item) -> str:
    """The tier of a test: that of its marker, or pure."""
    return next((tier for tier in TIERS[1:] if item.get_closest_marker(tier)), TIERS[0])


class Tiers:
    """Counts outcomes by tier."""

    def __init__(self) -> None:
        self._passed: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: TIERS.index(tier_of(item)))
        for item in items:
            tier = tier_of(item)
            item.user_properties.append((_TIER, tier))  # reports carry it to the process that counts
            if tier in _GROUPS:
                item.add_marker(pytest.mark.xdist_group(_GROUPS[tier]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tier = str(dict(report.user_properties).get(_TIER, TIERS[0]))
        if report.when == "call" and report.passed:
            self._passed[tier] += 1
        elif report.failed:
            self._failed[tier] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("tiers")
        for tier in TIERS:
            if passed := self._passed[tier] + self._failed[tier]:
                terminalreporter.write_line(
                    f"{tier:8} {passed - self._failed[tier]} passed, {self._failed[tier]} failed"
                )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tiers(), "kvloop-tiers")
