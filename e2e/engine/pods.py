"""Real engines as pods of the embedded cluster: stock pods of the operator, in which vLLM comes from host folders."""

from pathlib import Path
from typing import Any

from e2e.engine import install, server

MODEL_PATH = "/models/tiny"


def spec(image: str, name: str) -> dict[str, Any]:
    """`spec` of a custom resource for one prefill and one decode engine that serve the tiny model as `name`.

    `image` gives the pods a root file system; programs and libraries are the machine's own.
    """
    home = install.ensure()
    # vLLM asks lscpu through a shell, which our images do not have.
    folders = {str(folder): str(folder.resolve()) for folder in (Path("/usr"), Path("/bin"), home, _base(home))}
    folders[MODEL_PATH] = str(server.model_folder(home))
    role = {"replicas": 1, "gpus": 0, "podTemplate": _template(folders)}
    env = {
        "PATH": f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",  # noqa: S108 - the pod's own
        **server.ENVIRONMENT,
    }
    return {
        "model": {"name": name, "source": {"path": MODEL_PATH}, "maxLength": server.MAX_LENGTH},
        "engine": {
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "version": install.VLLM,
            "dtype": "float32",
            "blockSize": server.BLOCK_SIZE,
            "shutdownTimeoutSeconds": 5,
            "args": [*server.ARGS],
            "env": [{"name": key, "value": value} for key, value in env.items()],
        },
        "prefill": role | {"prefixCaching": False},
        "decode": role,
        "transfer": {"fabric": "UCX", "decoderKVBlocksTTLSeconds": 120},
        "placement": {"sameZone": "None"},
    }


def _base(home: Path) -> Path:
    """The Python that the virtual environment was made from."""
    return (home / "bin" / "python").resolve().parents[1]


def _template(folders: dict[str, str]) -> dict[str, Any]:
    names = {inside: f"host-{number}" for number, inside in enumerate(folders)}
    mounts = [{"name": names[inside], "mountPath": inside, "readOnly": True} for inside in folders]
    volumes = [
        {"name": names[inside], "hostPath": {"path": outside, "type": "Directory"}}
        for inside, outside in folders.items()
    ]
    container = {
        "name": "vllm",
        "securityContext": {"runAsUser": 0},  # the folders may be readable to the machine's root alone
        "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - the pod's own
    }
    return {"spec": {"containers": [container], "volumes": [*volumes, {"name": "tmp", "emptyDir": {}}]}}
