"""Blueprints that were made before, packed: making one takes ten times as long as unpacking it."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvloop.api.v1alpha1 import DisaggregatedInference
from kvloop.controller.cache import Key
from kvloop.plan.config import PlanConfig
from kvloop.plan.desired import Blueprint, blueprint

Body = dict[str, Any]


@dataclass(frozen=True)
class _Kept:
    """A blueprint of one edit of a resource.

    `children` are compressed JSON, but for `shared`: long texts that all resources have in common, for each child.
    """

    uid: str
    generation: int
    base: Blueprint
    children: bytes
    shared: tuple[Mapping[str, str], ...]


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
            children = json.loads(zlib.decompress(kept.children))
            return replace(kept.base, children=tuple(map(_with, children, kept.shared)))
        made = blueprint(cr, self._config)
        shared = tuple(self._shared(child) for child in made.children)
        packed = zlib.compress(json.dumps(list(map(_without, made.children, shared))).encode(), level=1)
        self._kept[key] = _Kept(cr.metadata.uid, cr.metadata.generation, replace(made, children=()), packed, shared)
        return made

    def forget(self, key: Key) -> None:
        """Forget a resource that is gone."""
        self._kept.pop(key, None)

    def _shared(self, child: Body) -> dict[str, str]:
        """The texts in a child's `data` that are the same everywhere."""
        return {name: self._texts[text] for name, text in child.get("data", {}).items() if text in self._texts}


def _without(child: Body, shared: Mapping[str, str]) -> Body:
    if not shared:
        return child
    return child | {"data": {name: text for name, text in child["data"].items() if name not in shared}}


def _with(child: Body, shared: Mapping[str, str]) -> Body:
    return child | {"data": child["data"] | shared} if shared else child
