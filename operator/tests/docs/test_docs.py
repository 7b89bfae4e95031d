"""The documentation keeps up: every reason is explained, every link leads somewhere, every example is valid."""

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from kvloop.api.labels import KIND, Reason
from kvloop.api.validate import validate
from kvloop.controller.cache import Cache
from kvloop.controller.metrics import Metrics as OperatorMetrics
from kvloop.router.metrics import Metrics as RouterMetrics

ROOT: Final = Path(__file__).parents[3]
DOCS: Final = ROOT / "operator" / "docs"
PAGES: Final = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Names by which headings are linked: lower case, words joined by dashes, no punctuation."""
    headings = re.findall(r"^#+ (.*)$", text(page), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_reason_has_an_entry_and_every_entry_is_a_reason() -> None:
    page = text(DOCS / "troubleshooting.md")
    entries = re.findall(r"^### `(\w+)`\n(.+)$", page, re.MULTILINE)
    assert sorted(name for name, _ in entries) == sorted(Reason)
    assert min(len(words) for _, words in entries) > 20


def test_every_metric_of_router_and_operator_is_explained() -> None:
    registries = (OperatorMetrics(Cache()).registry, RouterMetrics().registry)
    families = [family for registry in registries for family in registry.collect()]
    names = {family.name + "_total" * (family.type == "counter") for family in families}
    assert "kvloop_reconcile_total" in names
    assert not names - set(re.findall(r"`(kvloop_\w+)`", text(DOCS / "monitoring.md")))


def test_the_index_names_every_page() -> None:
    index = text(DOCS / "README.md")
    unlisted = {page.name for page in PAGES if page.parent in {DOCS, DOCS / "security"}} - {"README.md"}
    assert not {name for name in unlisted if f"{name})" not in index}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    prose = re.sub(r"`[^`\n]+`", "code", text(page))
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"https?://", link):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_resources_are_valid(page: Path) -> None:
    example = rf"^apiVersion: kvloop\.io.*?^kind: {KIND}$.*?(?=^YAML$|^```$)"
    for block in re.findall(example, text(page), re.MULTILINE | re.DOTALL):
        assert validate(yaml.safe_load(block)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"\b((?:charts|manifests|operator|crds)/[\w./-]+\.(?:yaml|py|md|json))\b", text(page))
    assert not [name for name in named if not (ROOT / name).exists()]
