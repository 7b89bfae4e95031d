"""ConfigMaps: the engine's plugin, and the router's configuration."""

from typing import Any

from kvloop.api.labels import ENGINE_CONTAINER
from kvloop.plan import names, router
from kvloop.plan.config import PlanConfig
from kvloop.plan.render import to_text
from kvloop.plan.scope import Scope

_DIST_INFO = ".dist-info"


def build(scope: Scope) -> list[dict[str, Any]]:
    """Both ConfigMaps."""
    plugin = {plugin_key(path): text for path, text in sorted(scope.config.plugin_files.items())}
    config = to_text(router.config(scope).to_wire())
    return [
        scope.child("config_map", names.engine_plugin(scope.name), ENGINE_CONTAINER, data=plugin),
        scope.child("config_map", names.router(scope.name), router.COMPONENT, data={router.CONFIG_KEY: config}),
    ]


def plugin_items(config: PlanConfig) -> list[dict[str, str]]:
    """Where the plugin's files lie below its folder: a ConfigMap's keys cannot have slashes."""
    return [{"key": plugin_key(path), "path": path} for path in sorted(config.plugin_files)]


def plugin_key(path: str) -> str:
    """Key of a plugin's file. The version is no part of it, so that pods of the last release find their keys still."""
    return ".".join(part for part in path.split("/") if not part.endswith(_DIST_INFO))


def plugin_versions(config: PlanConfig) -> list[str]:
    """Name and version of the plugin, as its dist-info folder says them."""
    folders = {path.split("/")[0] for path in config.plugin_files}
    return sorted(folder for folder in folders if folder.endswith(_DIST_INFO))
