"""Reads from operator/Dockerfile how its images are run, so that images built without it cannot differ in that."""

import json
import re
import shlex
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from string import Template
from typing import Any


def image_config(dockerfile: Path, target: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """The OCI configuration of a stage: USER, WORKDIR, ENV, LABEL and ENTRYPOINT, of the stages it is built from too.

    Args:
        dockerfile: In the exec form of ENTRYPOINT and the key=value form of ENV and LABEL.
        target: The stage.
        arguments: Values for ARG; others have their defaults.
    """
    stages: dict[str, dict[str, Any]] = {}
    stage: dict[str, Any] = {}
    values: dict[str, str] = {}
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", dockerfile.read_text()))
    for instruction, rest in re.findall(r"(?m)^([A-Z]+) (.*)$", text):
        match instruction:
            case "FROM":
                base, _, name = rest.partition(" AS ")
                stage = stages[name] = deepcopy(stages.get(base, {"Env": {}, "Labels": {}}))
            case "ARG":
                name, _, default = rest.partition("=")
                values[name] = arguments.get(name, default)
            case "ENV":
                stage["Env"] |= _pairs(rest, values)
            case "LABEL":
                stage["Labels"] |= _pairs(rest, values)
            case "USER":
                stage["User"] = rest
            case "WORKDIR":
                stage["WorkingDir"] = rest
            case "ENTRYPOINT":
                stage["Entrypoint"] = json.loads(rest)
    return stages[target] | {"Env": [f"{key}={value}" for key, value in stages[target]["Env"].items()]}


def _pairs(text: str, values: Mapping[str, str]) -> dict[str, str]:
    words = shlex.split(Template(text).substitute(values))
    return {key: value for key, _, value in (word.partition("=") for word in words)}
