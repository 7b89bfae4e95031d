"""The documentation keeps up: every reason is explained, every link leads somewhere, every example is valid."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import pytest
import yaml
from pydantic import BaseModel

from kvloop.api.contract import Miss, RouterConfig
from kvloop.api.instances import INSTANCE_TYPES
from kvloop.api.labels import KIND, Condition, Reason
from kvloop.api.v1alpha1 import Spec, Status
from kvloop.api.v1alpha1.reuse import AdviceStatus, ReuseStatus
from kvloop.api.validate import validate
from kvloop.cli.main import command
from kvloop.controller.cache import Cache
from kvloop.controller.metrics import Metrics as OperatorMetrics
from kvloop.engine import guard
from kvloop.router import accesslog
from kvloop.router.metrics import Metrics as RouterMetrics
from kvloop.router.outcome import Outcome

ROOT: Final = Path(__file__).parents[3]
DOCS: Final = ROOT / "operator" / "docs"
PAGES: Final = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def consoles(page: Path) -> list[str]:
    """What is typed in the examples, a command a line."""
    shown = re.findall(r"^ *```console\n(.*?)^ *```", text(page), re.MULTILINE | re.DOTALL)
    return [line for block in shown for line in re.sub(r"(\\|\||&&)\n *", r" ", block).splitlines()]


def anchors(page: Path) -> set[str]:
    """Names by which headings are linked: lower case, words joined by dashes, no punctuation."""
    headings = re.findall(r"^#+ (.*)$", text(page), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


def section(page: Path, heading: str) -> str:
    """A part of a page, down to the next heading of any level."""
    found = re.search(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", text(page), re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def first_cells(table: str) -> list[str]:
    """What is code in the first column of tables."""
    return [
        word
        for line in table.splitlines()
        if line.startswith("| `")
        for word in re.findall("`([^`]+)`", line.split("|")[1])
    ]


def leaves(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, Any]]:
    """Names, with those around them, and defaults of all fields that hold no other fields."""
    for name, field in model.model_fields.items():
        here = f"{path}{field.alias or name}"
        inner = [each for each in (field.annotation, *get_args(field.annotation)) if hasattr(each, "model_fields")]
        if inner:
            yield from leaves(inner[0], f"{here}.")
        else:
            yield here, field.get_default(call_default_factory=True)


def names(model: Any, path: str = "") -> Iterator[str]:
    """Names of all fields, with those around them, through lists and options."""
    for name, field in model.model_fields.items():
        here, kinds = f"{path}{field.alias or name}", [field.annotation]
        yield here
        while kinds:
            kind = kinds.pop()
            if hasattr(kind, "model_fields"):
                yield from names(kind, f"{here}.")
            else:
                kinds += get_args(kind)


def values(of: Any, path: str = "") -> Iterator[str]:
    """Names of the chart's values."""
    for name, inner in of.items() if isinstance(of, dict) else ():
        yield f"{path}{name}"
        yield from values(inner, f"{path}{name}.")


def test_every_reason_has_an_entry_and_every_entry_is_a_reason() -> None:
    page = text(DOCS / "troubleshooting.md")
    entries = re.findall(r"^### `(\w+)`\n(.+)$", page, re.MULTILINE)
    assert sorted(name for name, _ in entries) == sorted(Reason)
    assert min(len(words) for _, words in entries) > 20


def test_every_miss_has_its_meaning_and_its_remedy_once() -> None:
    """The router's own words, and those of the guard with which it verifies nothing on prefill."""
    guards = set(get_args(guard.Reason)) - {"match", "partial", "released", "other_prompt"}
    table = section(DOCS / "troubleshooting.md", "Misses")
    assert sorted(first_cells(table)) == sorted(guards | set(Miss))
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    assert all(len(meaning) > 10 and len(remedy) > 5 for _, _, meaning, remedy, _ in rows)


def test_every_reason_of_the_guard_is_in_its_report() -> None:
    assert sorted(first_cells(section(DOCS / "guard.md", "The report"))) == sorted(get_args(guard.Reason))


@pytest.mark.parametrize("heading", ["Turns that cannot reuse", "Turns of decode alone"])
def test_other_words_of_the_router_are_its_own(heading: str) -> None:
    source = "".join(text(path) for path in (ROOT / "operator" / "src" / "kvloop" / "router").rglob("*.py"))
    words = first_cells(section(DOCS / "troubleshooting.md", heading))
    assert len(words) > 5
    assert not [word for word in words if f'"{word}"' not in source and f'"{word.rstrip(".")}' not in source]


@pytest.mark.parametrize(("model", "page"), [(ReuseStatus, "operations.md"), (AdviceStatus, "advice.md")])
def test_every_number_of_the_status_is_explained(model: type[BaseModel], page: str) -> None:
    wanted = {part for path in names(model) for part in path.split(".")}
    assert len(wanted) > 5
    assert not wanted - set(re.findall(r"`(\w+)`", text(DOCS / page)))


def test_every_key_of_the_routers_configuration_is_explained_with_its_default() -> None:
    table = section(DOCS / "router.md", "Configuration")
    rows = {key: line for line in table.splitlines() for key in first_cells(line)}
    for path, default in leaves(RouterConfig):
        around, _, name = path.rpartition(".")
        row = rows.get(path) or rows.get(around, "")
        assert path in rows or f"`{name}`" in row, path
        if type(default) in (int, float) and 0 < default < 1_000_000:
            assert re.search(rf"\b{re.escape(f'{default:g}')}\b", row.split("|")[2]), path


def test_every_field_of_the_routers_log_is_explained() -> None:
    full = Outcome()
    for name, kind in Outcome.__annotations__.items():
        setattr(full, name, "x" if kind is str else 1)
    out = io.BytesIO()
    accesslog.write(out, full)
    assert sorted(first_cells(section(DOCS / "router.md", "Watch it"))) == sorted(json.loads(out.getvalue()))


def test_every_metric_is_explained_and_every_one_explained_is_there() -> None:
    """Those that are read when they are asked for need engines, so their names are taken from the source."""
    registries = (OperatorMetrics(Cache()).registry, RouterMetrics().registry)
    families = [family for registry in registries for family in registry.collect()]
    names = {family.name + "_total" * (family.type == "counter") for family in families}
    router, plugin = (text(ROOT / "operator/src/kvloop" / path) for path in ("router/metrics.py", "engine/plugin.py"))
    names |= {f"kvloop_router_{name}" for name in re.findall(r'_(?:gauge|by_engine)\(\s*"(\w+)"', router)}
    names |= {f"{name}_total" for name in re.findall(r'CounterMetricFamily\("(\w+)"', router)}
    names |= {f"{name}_total" for name in re.findall(r'counter\("(kvloop_\w+)"', plugin)}
    names |= set(re.findall(r'Gauge\("(kvloop_\w+)"', plugin))
    assert {"kvloop_reconcile_total", "kvloop_router_ready", "kvloop_guard_handles_total"} <= names
    assert sorted(first_cells(section(DOCS / "monitoring.md", "Metrics"))) == sorted(names)


def test_panels_that_runbooks_name_are_on_the_dashboard() -> None:
    titles = set(re.findall(r'"title":"([^"]+)"', text(ROOT / "charts" / "kvloop" / "files" / "dashboard.json")))
    named = re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text(DOCS / "runbooks.md"))
    assert len(named) > 4
    assert not set(named) - titles


def test_the_index_names_every_page() -> None:
    index = text(DOCS / "README.md")
    unlisted = {page.name for page in PAGES if page.parent in {DOCS, DOCS / "security"}} - {"README.md"}
    assert not {name for name in unlisted if f"{name})" not in index}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    prose = re.sub(r"`[^`\n]+`", "code", text(page))
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"https?://", link):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_of_resources_are_valid(page: Path) -> None:
    example = rf"^apiVersion: kvloop\.io.*?^kind: {KIND}$.*?(?=^YAML$|^```$)"
    for block in re.findall(example, text(page), re.MULTILINE | re.DOTALL):
        assert validate(yaml.safe_load(block)) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"\b((?:charts|manifests|operator|crds)/[\w./-]+\.(?:yaml|py|md|json))\b", text(page))
    assert not [name for name in named if not (ROOT / name).exists()]


CHART: Final = set(values(yaml.safe_load(text(ROOT / "charts" / "kvloop" / "values.yaml"))))
FIELDS: Final = {*names(Spec), *names(RouterConfig), *CHART, *(f"spec.{name}" for name in names(Spec))} | {
    f"status.{name}" for name in names(Status)
}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "development.md"], ids=name_of)
def test_fields_that_are_named_exist(page: Path) -> None:
    roots = "|".join({name.partition(".")[0] for name in FIELDS})
    assert not set(re.findall(rf"`((?:{roots})\.[\w.]+)(?:: [^`]*|=[^`]*)?`", text(page))) - FIELDS
    assert not set(re.findall(r"--set '?([\w.]+)=", text(page))) - CHART


def test_commands_that_are_shown_exist_and_have_these_options() -> None:
    lines = "\n".join(line for page in PAGES for line in consoles(page))
    shown = re.findall(r"^(?:\$ .*?)?\bkvloop (\w+)((?: [^#|\n]*)?)(?:#.*)?$", lines, re.MULTILINE)
    assert len(shown) > 6
    for name, rest in shown:
        known = {option for parameter in command(name).params for option in parameter.opts}
        assert not set(re.findall(r"(?<!\S)--?[a-z][\w-]*", rest)) - known, (name, rest)


def test_alerts_are_listed_as_they_are() -> None:
    rules = yaml.safe_load(text(ROOT / "manifests" / "alerts" / "rules.yaml"))
    alerts = [
        (rule["alert"], rule["alert"].lower(), rule["labels"]["severity"], rule["for"].replace("m", " min"))
        for group in rules["groups"]
        for rule in group["rules"]
    ]
    row = r"^\| \[(\w+)\]\(runbooks\.md#(\w+)\) \| (\w+) \| (\d+ min) \| \S"
    assert sorted(re.findall(row, text(DOCS / "monitoring.md"), re.MULTILINE)) == sorted(alerts)


def test_conditions_and_instance_types_are_those_of_the_code() -> None:
    assert first_cells(section(DOCS / "operations.md", "See")) == list(Condition)
    rows = re.findall(r"^\| ([a-z0-9-]+\.[^|]+) \| (\d+) \| (\d+) \| (\d+)", text(DOCS / "eks.md"), re.MULTILINE)
    assert len(rows) > 4
    for types, gpus, devices, whole in rows:
        for name in types.split(", "):
            known = INSTANCE_TYPES[name]
            assert (known.gpus, known.efa, known.efa_for(known.gpus)) == (int(gpus), int(devices), int(whole)), name
