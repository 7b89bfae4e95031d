"""pytest plugin: orders the tests by tier, cheapest first, and counts each tier in the summary.

Under pytest-xdist, tests that share a cluster or engines stay together.
"""

from collections import Counter
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TIERS = ("pure", "api", "control", "node", "engine")
TOGETHER = {
    "e2e/api/": "control plane",
    "e2e/control/": "control plane",
    "e2e/charts/test_install.py": "control plane",
    "e2e/charts/test_node.py": "node",
    "e2e/node/": "node",
    "e2e/engine/": "engine",
    "e2e/monitoring/": "monitoring",
}
"""By the beginning of their path: tests that one process must run, since they share what is started once."""
_TIER = "tier"


def tier_of(item: pytest.Item) -> str:
    """The tier of a test: that of its marker, or pure."""
    return next((tier for tier in TIERS[1:] if item.get_closest_marker(tier)), TIERS[0])


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each process a group of tests that belong together, or a single test. Large groups go first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid) or nodeid


def group_of(nodeid: str) -> str:
    """The group of a test, empty if it stands alone."""
    return next((group for path, group in TOGETHER.items() if nodeid.startswith(path)), "")


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
            if tier != TIERS[0] and not group_of(item.nodeid):
                raise pytest.UsageError(f"{item.nodeid} shares a cluster or engines: name its folder in e2e.tiers")

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduling:
        return Scheduling(config, log)

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
