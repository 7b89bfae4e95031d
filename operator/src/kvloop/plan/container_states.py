"""The words with which the kubelet says that a container does not run: reasons of `state.waiting`."""

from typing import Final

REGISTRY_UNAVAILABLE: Final = "RegistryUnavailable"
NOT_PULLED: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "SignatureValidationFailed",
        REGISTRY_UNAVAILABLE,
    }
)
NOT_STARTED: Final = frozenset(
    {"CreateContainerError", "CreateContainerConfigError", "RunContainerError", "StartError"}
)
CRASH_LOOP: Final = "CrashLoopBackOff"

CRASHES: Final = 3
"""Crashes in a row after which somebody must act: the kubelet makes them within half a minute if each is immediate."""
