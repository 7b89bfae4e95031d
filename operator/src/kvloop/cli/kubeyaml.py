"""YAML as kubectl reads it: y and n are no text there, which PyYAML takes them for."""

import re
from collections.abc import Hashable
from typing import Any, ClassVar

import yaml


class Loader(yaml.SafeLoader):
    """Reads it. A key that is there twice is refused: kubectl would silently take the last."""

    bool_values: ClassVar = yaml.SafeLoader.bool_values | {"y": True, "n": False}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                problem = f"{key.value} is there twice"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, and each object in full wherever it stands."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (the signature is PyYAML's)
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


Dumper.add_representer(str, _text)
for _each in (Loader, Dumper):  # the one reads them as true and false, the other puts the texts into quotes
    _each.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^[yYnN]$"), list("yYnN"))
