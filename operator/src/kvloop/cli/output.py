"""Objects as text: YAML as people write it, or JSON as `kubectl get --output json` prints it."""

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from kvloop.cli.kubeyaml import Dumper

_WIDTH = 116


class Format(StrEnum):
    """What is printed."""

    YAML = "yaml"
    JSON = "json"


class OutputError(Exception):
    """Files that cannot be written as asked."""


def to_yaml(child: dict[str, Any]) -> str:
    """One YAML document."""
    return yaml.dump(child, Dumper=Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)


def to_text(children: Sequence[dict[str, Any]], output: Format) -> str:
    """YAML documents, or one JSON object: the child itself, or a List of several."""
    if output is Format.YAML:
        return "---\n".join(to_yaml(child) for child in children)
    one = children[0] if len(children) == 1 else {"apiVersion": "v1", "kind": "List", "items": list(children)}
    return json.dumps(one, indent=2, ensure_ascii=False) + "\n"


def file_name(child: dict[str, Any], output: Format) -> str:
    """Name of the file that holds a child."""
    return f"{child['kind'].lower()}-{child['metadata']['name']}.{output}"


def write_files(folder: Path, children: Iterable[dict[str, Any]], output: Format) -> list[Path]:
    """Write each child to a file of its own.

    Raises:
        OutputError: two children would share a file, as those of namesakes in two namespaces do, or the folder cannot
            be written.
    """
    texts: dict[Path, str] = {}
    for child in children:
        path = folder / file_name(child, output)
        if path in texts:
            raise OutputError(f"{path} would be written twice: render resources of one name into folders of their own")
        texts[path] = to_text([child], output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {error.filename}: {error.strerror}") from error
    return list(texts)
