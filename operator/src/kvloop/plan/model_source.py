"""Where the weights come from, as arguments, volumes and mounts of the engine's container."""

import json
from dataclasses import dataclass
from typing import Any

from kvloop.api.labels import Role
from kvloop.plan.scope import Scope

VOLUME_FOLDER = "/var/lib/kvloop/model"


@dataclass(frozen=True)
class ModelSource:
    """`model` is vLLM's positional argument. It is the same on both roles, since vLLM compares it between engines."""

    model: str
    args: tuple[str, ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()


def of(scope: Scope, role: Role) -> ModelSource:
    """The model's source for a role."""
    source = scope.spec.model.source
    if source.hugging_face:
        revision = source.hugging_face.revision
        return ModelSource(source.hugging_face.repository, (f"--revision={revision}",) if revision else ())
    if source.s3:
        return ModelSource(source.s3.uri, _streamer(scope, role))
    if source.volume:
        claim = {"claimName": source.volume.claim_name, "readOnly": True}
        path = source.volume.path.strip("/")
        return ModelSource(
            f"{VOLUME_FOLDER}/{path}" if path else VOLUME_FOLDER,
            volumes=({"name": "model", "persistentVolumeClaim": claim},),
            mounts=({"name": "model", "mountPath": VOLUME_FOLDER, "readOnly": True},),
        )
    return ModelSource(source.path or "")


def _streamer(scope: Scope, role: Role) -> tuple[str, ...]:
    """Run:ai model streamer. With several GPUs each reads a part and they exchange it, which AWS' guide advises.

    https://docs.aws.amazon.com/eks/latest/userguide/ml-inference-load-serve-model.html
    """
    args = ["--load-format=runai_streamer"]
    if scope.role(role).tensor_parallel_size > 1 and scope.resolved.gpus[role]:
        args.append(f"--model-loader-extra-config={json.dumps({'distributed': True})}")
    return tuple(args)
