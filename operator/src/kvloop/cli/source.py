"""Custom resources from files, with the place of each, so that an error can say where it is."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from kvloop.api.labels import API_VERSION, KIND
from kvloop.api.validate import validate
from kvloop.cli.exits import errors
from kvloop.cli.kubeyaml import Loader

STDIN = "-"
NAMESPACE_RULE: Final = "must be lower case letters, digits and dashes, at most 63 of them"
_MAX_DEPTH: Final = 100
_TOO_DEEP: Final = f"nested deeper than {_MAX_DEPTH} levels, which no field of a pod is"
_MAX_PARTS: Final = 1_000_000
"""Of one document: far beyond what an API server takes (3 MiB a request), and still read in a second or two."""


class SourceError(Exception):
    """A file that cannot be read, or that is no YAML."""


@dataclass(frozen=True)
class Document:
    """One object of a file; `place` is for people, such as `demo.yaml, document 2`."""

    place: str
    body: dict[str, Any]

    @property
    def title(self) -> str:
        """Place and name."""
        metadata = self.body.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return f"{self.place} ({self.body.get('kind', 'no kind')} {name or 'without a name'})"

    @property
    def ours(self) -> bool:
        """Whether it is, or tries to be, our custom resource: right kind or right group."""
        group = str(self.body.get("apiVersion", "")).partition("/")[0]
        return self.body.get("kind") == KIND or group == API_VERSION.partition("/")[0]


def documents(files: list[str]) -> Iterator[Document]:
    """Every object in the files, in order; `-` is standard input, and Lists are taken apart.

    Raises:
        SourceError: a file cannot be read, is no YAML, or holds something that is no object.
    """
    for file in files:
        name = "standard input" if file == STDIN else file
        for number, body in enumerate(_load(name, _read(file)), start=1):
            yield from _expand(f"{name}, document {number}", body)


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"cannot read {file}: it is no UTF-8 text (byte {error.start})") from error


def _load(name: str, text: str) -> list[Any]:
    try:
        bodies = [body for body in yaml.load_all(text, Loader) if body is not None]
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise SourceError(f"{name} is no valid YAML: {line}{error.problem}") from error
    except yaml.YAMLError as error:
        raise SourceError(f"{name} is no valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise SourceError(f"{name} is {_TOO_DEEP}") from error
    for body in bodies:
        _bounded(name, body)
    return bodies


def _bounded(name: str, body: Any) -> None:
    """Refuse what aliases make endless or huge, so that nobody after this needs to fear either."""
    parts = 0
    todo = [(body, 0)]
    while todo:
        value, depth = todo.pop()
        parts += 1
        if depth > _MAX_DEPTH:
            raise SourceError(f"{name} is {_TOO_DEEP}, or an alias contains itself")
        if parts > _MAX_PARTS:
            raise SourceError(f"{name} is too large, or its aliases multiply: more than {_MAX_PARTS:,} values")
        if isinstance(value, dict | list):
            todo += [(part, depth + 1) for part in (value.values() if isinstance(value, dict) else value)]


def _expand(place: str, body: Any) -> Iterator[Document]:
    if not isinstance(body, dict):
        raise SourceError(f"{place} is no Kubernetes object but {type(body).__name__}")
    items = body.get("items")
    if body.get("kind") == "List" and isinstance(items, list):
        for index, item in enumerate(items):
            yield from _expand(f"{place}, items[{index}]", item)
    else:
        yield Document(place, body)


def resources(files: list[str]) -> list[Document]:
    """Our resources in the files; others are told of and passed over.

    Raises:
        SourceError: a file cannot be read, or there is none of ours.
    """
    found = []
    for document in documents(files):
        if document.ours:
            found.append(document)
        else:
            errors.print(f"passed over: {document.title}")
    if not found:
        raise SourceError(f"no DisaggregatedInference in {', '.join(files)}")
    return found


def problems(body: dict[str, Any]) -> list[str]:
    """Why the API server would refuse a resource: of its metadata, and of all that the CRD says. It drops a status."""
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        return ["metadata: must be an object with a name"]
    named = {field: metadata.get(field, "") for field in ("name", "namespace")}
    wrong = [f"metadata.{field}: must be text" for field, it in named.items() if not isinstance(it, str)]
    wrong += [
        f"metadata.{field}: must map text to text"
        for field in ("labels", "annotations")
        if not _texts(metadata.get(field))
    ]
    if not wrong and not namespace_fits(named["namespace"] or "default"):
        wrong.append(f"metadata.namespace: {NAMESPACE_RULE}")
    return wrong or validate({name: value for name, value in body.items() if name != "status"})


def _texts(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and all(isinstance(it, str) for pair in value.items() for it in pair)
    )


def namespace_fits(name: str) -> bool:
    """Whether a namespace may have this name: that of a DNS label."""
    return re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) is not None


def refusals(found: list[Document]) -> list[str]:
    """The problems of all resources, each with its place."""
    return [f"{document.title}: {problem}" for document in found for problem in problems(document.body)]


def in_namespace(body: dict[str, Any], namespace: str | None) -> dict[str, Any]:
    """The same resource, in that namespace if it does not say one; without a status, which is not a file's to tell."""
    wanted = {name: value for name, value in body.items() if name != "status"}
    if namespace is None:
        return wanted
    return {**wanted, "metadata": {"namespace": namespace, **body["metadata"]}}
