"""Blueprints that were made before, as compact text: making one takes ten times as long as reading it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvloop.api.v1alpha1 import DisaggregatedInference
from kvloop.controller.cache import Key
from kvloop.plan.config import PlanConfig
from kvloop.plan.desired import Blueprint, blueprint


@dataclass(frozen=True)
class _Kept:
    """A blueprint of one edit of a resource; `children` are JSON, but for long texts that all resources share."""

    uid: str
    generation: int
    base: Blueprint
    children: tuple[tuple[str, Mapping[str, str]], ...]


class Blueprints:
    """Keeps the blueprint of each resource until it is edited or forgotten."""

    def __init__(self, config: PlanConfig) -> None:
        self._config = config
        self._texts = {text: text for text in config.plugin_files.values()}
        self._kept: dict[Key, _Kept] = {}

    def of(self, key: Key, cr: DisaggregatedInference) -> Blueprint:
        """The blueprint of a resource."""
        kept = self._kept.get(key)
        if kept and (kept.uid, kept.generation) == (cr.metadata.uid, cr.metadata.generation):
            return replace(kept.base, children=tuple(_read(*child) for child in kept.children))
        made = blueprint(cr, self._config)
        children = tuple(self._written(child) for child in made.children)
        self._kept[key] = _Kept(cr.metadata.uid, cr.metadata.generation, replace(made, children=()), children)
        return made

    def forget(self, key: Key) -> None:
        """Forget a resource that is gone."""
        self._kept.pop(key, None)

    def _written(self, child: dict[str, Any]) -> tuple[str, Mapping[str, str]]:
        """A child without the texts in its `data` that are the same everywhere, and these."""
        shared = {name: self._texts[text] for name, text in child.get("data", {}).items() if text in self._texts}
        if not shared:
            return json.dumps(child), {}
        own = {name: text for name, text in child["data"].items() if name not in shared}
        return json.dumps(child | {"data": own}), shared


def _read(text: str, shared: Mapping[str, str]) -> dict[str, Any]:
    child: dict[str, Any] = json.loads(text)
    return child | {"data": child["data"] | shared} if shared else child
