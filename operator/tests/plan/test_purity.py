"""The planner is a function of its arguments: nothing it imports or calls can read a clock, a file or the network."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvloop.plan

FOLDER = Path(kvloop.plan.__file__).parent
MODULES = {path.relative_to(FOLDER).with_suffix("").as_posix(): path.read_text() for path in FOLDER.rglob("*.py")}
ALLOWED = {
    "collections", "dataclasses", "datetime", "enum", "fractions", "functools", "hashlib", "itertools", "json", "math",
    "re", "types", "typing", "yaml", "kvloop.advice", "kvloop.api", "kvloop.plan",
}  # fmt: skip
"""What may be imported; of datetime only what turns given seconds into text."""
BUILTINS = {"open", "input", "print", "exec", "eval", "compile", "__import__", "breakpoint", "id", "hash"}
CLOCKS = {"now", "utcnow", "today"}
READERS = {"get_template", "list_templates", "PackageLoader"}
"""What reads the templates: it stands where it runs once, when `render` is imported."""


def faults(module: str, text: str) -> Iterator[str]:
    """What makes a module impure."""
    allowed = ALLOWED | ({"jinja2"} if module == "render" else set())
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases if not _within(alias.name, allowed))
            case ast.ImportFrom(module=name) if not _within(name or "", allowed):
                yield str(name)
            case ast.Name(id=name) if name in BUILTINS:
                yield name
            case ast.Call(func=ast.Attribute(attr=name)) if name in CLOCKS:
                yield name
            case ast.FunctionDef(name=name) if (module, name) != ("render", "_environment"):
                yield from (found for found in _names(node) if found in READERS)


def _within(name: str, allowed: set[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in allowed)


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


@pytest.mark.parametrize("module", sorted(MODULES))
def test_the_planner_is_pure(module: str) -> None:
    assert list(faults(module, MODULES[module])) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "import os.path",
        "from pathlib import Path",
        "import random",
        "from kvloop.kube import client",
        "from . import scope",
        "import jinja2",
        "open('x')",
        "datetime.now()",
        "def f(): return environment.get_template('x')",
    ],
)
def test_what_is_impure_is_found(text: str) -> None:
    assert list(faults("scope", text))
