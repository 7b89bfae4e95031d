"""Keys that clients show. Only digests are kept in memory."""

import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

log = logging.getLogger(__name__)


class ApiKeys:
    """The keys in a folder, one a file, as a mounted Secret has them. Without a key nobody is let in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._digests: frozenset[bytes] = frozenset()
        self.load()

    def load(self) -> None:
        """Read the folder again; where that fails, what was read before still holds."""
        try:
            # Kubernetes keeps the files of a volume in folders whose names begin with two dots.
            files = [path for path in self.folder.iterdir() if path.is_file() and not path.name.startswith("..")]
            keys = [path.read_bytes().strip() for path in files]
        except OSError as error:
            log.warning("cannot read the API keys in %s: %s", self.folder, error)
            return
        digests = frozenset(sha256(key).digest() for key in keys if key)
        if digests != self._digests:
            log.info("%d API keys are accepted", len(digests))
        self._digests = digests

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Whether a request shows an accepted key, as OpenAI's clients do or as Anthropic's."""
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            shown = headers.get("x-api-key", "")
        # Digests are compared, so how long it takes tells nothing about a key.
        return sha256(shown.strip().encode("latin-1", "replace")).digest() in self._digests
