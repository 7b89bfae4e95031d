"""The images of operator/Dockerfile, built without a Docker engine and imported into containerd."""

from e2e.images.builder import Image, build
from e2e.images.errors import ImageError

__all__ = ["Image", "ImageError", "build"]
