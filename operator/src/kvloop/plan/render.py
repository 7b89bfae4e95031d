"""Templates to dicts: each is one child as `kubectl get --output yaml` shows it, with values that come from Python.

The templates are read here, once, when the package is imported: planning itself touches no file. Values do not become
YAML and back: a template is rendered with a numbered mark in the place of each, and its YAML, which is then always the
same, is read once.
"""

import json
from functools import lru_cache
from typing import Any, Final

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

# The ones in C where PyYAML was built with them: ten times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_SCALARS: Final = (str, int, bool, type(None))
_MARK: Final = "the value number "
_TAKEN: Final = "values_taken"


class TemplateError(RuntimeError):
    """A template that does not give a Kubernetes object: an error of ours, never of the custom resource."""


@pass_context
def _take(context: Context, value: Any) -> str:
    """A mark for a value, which is kept as plain data."""
    taken: list[Any] = context[_TAKEN]
    taken.append(value if type(value) in _SCALARS else json.loads(json.dumps(value, default=_refuse)))
    return f'"{_MARK}{len(taken) - 1}"'


def _refuse(value: Any) -> Any:
    """No plain data: a value that the template was not given says so itself, by name."""
    raise TypeError(f"a template got {value!s}, which is no plain data")


def _environment() -> Environment:
    environment = Environment(  # noqa: S701 (escaping for HTML would corrupt YAML; every value goes through tojson)
        loader=PackageLoader("kvloop.plan"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["tojson"] = _take
    return environment


_ENVIRONMENT = _environment()
_TEMPLATES = {name: _ENVIRONMENT.get_template(name) for name in _ENVIRONMENT.list_templates()}


def render(template: str, **values: Any) -> dict[str, Any]:
    """The object of `templates/<template>.yaml.j2`; keys whose value is None are left out, at any depth.

    Raises:
        TemplateError: the result is no object with apiVersion, kind and name.
        jinja2.UndefinedError: a value is missing.
    """
    taken: list[Any] = []
    skeleton = _skeleton(_TEMPLATES[f"{template}.yaml.j2"].render(values | {_TAKEN: taken}))
    child = _filled(skeleton, taken)
    if not isinstance(child, dict) or not all(isinstance(child.get(key), str) for key in ("apiVersion", "kind")):
        raise TemplateError(f"template {template} gives no Kubernetes object")
    if not isinstance(child.get("metadata", {}).get("name"), str):
        raise TemplateError(f"template {template} gives an object without a name")
    return child


@lru_cache(maxsize=256)
def _skeleton(text: str) -> Any:
    """What a rendered template says, with marks; there are as many as there are ways through the templates' loops."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a safe loader)


def _filled(part: Any, taken: list[Any]) -> Any:
    """A new tree, with values in the places of their marks, without keys whose value is None."""
    if isinstance(part, dict):
        filled = ((key, _filled(item, taken)) for key, item in part.items())
        return {key: item for key, item in filled if item is not None}
    if isinstance(part, list):
        return [_filled(item, taken) for item in part]
    if isinstance(part, str) and part.startswith(_MARK):
        return without_none(taken[int(part.removeprefix(_MARK))])
    return part


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
