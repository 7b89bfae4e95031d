"""`spec.model`: what is served and where its weights are."""

from typing import ClassVar

from pydantic import Field

from kvloop.api.v1alpha1.base import Model, ObjectName, Rule, SecretKeyRef


class HuggingFaceSource(Model):
    """Weights from the Hugging Face Hub. Both roles load the same revision."""

    repository: str = Field(
        min_length=1,
        max_length=256,
        pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?$",
        description="Repository, such as Qwen/Qwen3-32B.",
    )
    revision: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Commit, tag or branch. Pin a commit: P and D must load the same weights.",
    )
    token_secret_ref: SecretKeyRef | None = Field(
        None, description="Access token; given to every container that loads the model, as HF_TOKEN."
    )


class S3Source(Model):
    """Weights streamed from S3 with the Run:ai model streamer."""

    uri: str = Field(max_length=1024, pattern=r"^s3://[a-z0-9.-]+(/.*)?$", description="Such as s3://weights/llama/.")


class VolumeSource(Model):
    """Weights on a PersistentVolumeClaim, mounted read-only."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")
    path: str = Field("", max_length=1024, description="Folder of the model within the volume.")


class ModelSource(Model):
    """Where the weights are; exactly one member is set."""

    hugging_face: HuggingFaceSource | None = Field(None, description="Hugging Face Hub.")
    s3: S3Source | None = Field(None, description="S3, streamed at start.")
    volume: VolumeSource | None = Field(None, description="PersistentVolumeClaim.")
    path: str | None = Field(
        None, max_length=1024, pattern=r"^/", description="Absolute folder within the engine's image."
    )

    rules: ClassVar = (
        Rule(
            "[has(self.huggingFace), has(self.s3), has(self.volume), has(self.path)].filter(x, x).size() == 1",
            "set exactly one source of huggingFace, s3, volume and path",
        ),
    )


class ModelSpec(Model):
    """The model that both roles serve."""

    name: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="Name under which clients ask for the model; without control characters.",
    )
    source: ModelSource = Field(description="Where the weights are.")
    max_length: int | None = Field(
        None, ge=1, le=16777216, description="Longest sequence in tokens; the model's own limit by default."
    )
