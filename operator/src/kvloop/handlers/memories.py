"""Kopf keeps a memory of every object for handlers with state; ours have none, and it outweighs our whole cache."""

from typing import Any

from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory


class NoMemories(ResourceMemories):
    """Gives every event a memory of its own, and keeps none."""

    async def recall(self, *arguments: Any, **options: Any) -> ResourceMemory:
        """A new memory."""
        return await super().recall(*arguments, **(options | {"ephemeral": True}))
