"""Templates to dicts: each is one child as `kubectl get --output yaml` shows it, with values that come from Python.

The templates are read here, once, when the package is imported: planning itself touches no file.
"""

import json
import re
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

_SURROGATES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
# The ones in C where PyYAML was built with them: ten times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class TemplateError(RuntimeError):
    """A template that does not give a Kubernetes object: an error of ours, never of the custom resource."""


def _one_escape(pair: re.Match[str]) -> str:
    high, low = (int(half, 16) for half in pair.groups())
    return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08X}"


def to_yaml_scalar(value: Any) -> str:
    """JSON that YAML reads as the same value.

    ASCII only, since YAML refuses some characters and folds others; and beyond the basic plane one escape instead of
    JSON's pair, which YAML would read as two characters.
    """
    return _SURROGATES.sub(_one_escape, json.dumps(value, default=_refuse))


def _refuse(value: Any) -> Any:
    """No plain data: a value that the template was not given says so itself, by name."""
    raise TypeError(f"a template got {value!s}, which is no plain data")


def _environment() -> Environment:
    environment = Environment(  # noqa: S701 (escaping for HTML would corrupt YAML; every value goes through tojson)
        loader=PackageLoader("kvloop.plan"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["tojson"] = to_yaml_scalar
    return environment


_ENVIRONMENT = _environment()
_TEMPLATES = {name: _ENVIRONMENT.get_template(name) for name in _ENVIRONMENT.list_templates()}


def render(template: str, **values: Any) -> dict[str, Any]:
    """The object of `templates/<template>.yaml.j2`; keys whose value is None are left out, at any depth.

    Raises:
        TemplateError: the result is no object with apiVersion, kind and name.
        jinja2.UndefinedError: a value is missing.
    """
    rendered = yaml.load(_TEMPLATES[f"{template}.yaml.j2"].render(values), Loader=_Loader)  # noqa: S506 (a safe loader)
    child = without_none(rendered)
    if not isinstance(child, dict) or not all(isinstance(child.get(key), str) for key in ("apiVersion", "kind")):
        raise TemplateError(f"template {template} gives no Kubernetes object")
    if not isinstance(child.get("metadata", {}).get("name"), str):
        raise TemplateError(f"template {template} gives an object without a name")
    return child


def without_none(value: Any) -> Any:
    """The same data without keys whose value is None."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_none(item) for item in value]
    return value


def to_text(data: dict[str, Any]) -> str:
    """YAML for a file that a program reads and people look at."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False)
    return text
