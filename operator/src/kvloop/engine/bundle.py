"""The plugin as files to be mounted into a stock vLLM image, in a folder on PYTHONPATH.

vLLM finds the plugin by its distribution's entry points, so the folder holds the modules and a ``.dist-info`` beside
them. Nothing is installed and no image is rebuilt.
"""

from __future__ import annotations

from importlib.resources import files as resources

from kvloop import __version__

_NOT_MOUNTED = frozenset({"bundle.py"})


def files() -> dict[str, str]:
    """Text of each file by its path below the mount point, in the order of the paths.

    Small enough for a ConfigMap: below 200 KiB, while Kubernetes allows 1 MiB.
    """
    texts = {"kvloop/__init__.py": resources("kvloop").joinpath("__init__.py").read_text()}
    for module in resources("kvloop.engine").iterdir():
        if module.name.endswith(".py") and module.name not in _NOT_MOUNTED:
            texts[f"kvloop/engine/{module.name}"] = module.read_text()
    info = f"kvloop_engine-{__version__}.dist-info"
    texts[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: kvloop-engine\nVersion: {__version__}\n"
    texts[f"{info}/entry_points.txt"] = "[vllm.general_plugins]\nkvloop = kvloop.engine.plugin:register\n"
    return dict(sorted(texts.items()))
