"""The planner is a function of its arguments: nothing it imports or calls can read a clock, a file or the network."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvloop.plan

MODULES = sorted(Path(kvloop.plan.__file__).parent.glob("*.py"))
ALLOWED = {
    "collections", "dataclasses", "datetime", "enum", "fractions", "functools", "hashlib", "itertools", "json", "math",
    "re", "types", "typing", "kvloop", "yaml",
}  # fmt: skip
"""Top-level packages; of datetime only what turns given seconds into text."""
BUILTINS = {"open", "input", "print", "exec", "eval", "compile", "__import__", "breakpoint", "id", "hash"}
CLOCKS = {"now", "utcnow", "today"}


def trees() -> list[tuple[str, ast.Module]]:
    return [(path.stem, ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES]


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module or ""


@pytest.mark.parametrize(("module", "tree"), trees(), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_nothing_impure(module: str, tree: ast.Module) -> None:
    allowed = ALLOWED | ({"jinja2"} if module == "render" else set())
    packages = {name.partition(".")[0] for name in imported(tree)}
    assert packages <= allowed
    ours = {name for name in imported(tree) if name.startswith("kvloop")}
    assert all(name.startswith(("kvloop.plan", "kvloop.api")) for name in ours)


@pytest.mark.parametrize(("module", "tree"), trees(), ids=lambda value: value if isinstance(value, str) else "")
def test_calls_nothing_impure(module: str, tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            assert node.id not in BUILTINS, f"{module}: {node.id}"
        if isinstance(node, ast.Attribute):
            assert node.attr not in CLOCKS, f"{module}: .{node.attr}"


def test_templates_are_read_only_when_the_package_is_imported() -> None:
    """`get_template` and the loader stand in `render` alone, outside of what is called when planning."""
    readers = {"get_template", "list_templates", "PackageLoader", "_environment"}
    for module, tree in trees():
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            if (module, function.name) != ("render", "_environment"):
                used = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
                used |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
                assert not used & readers, f"{module}.{function.name}"
