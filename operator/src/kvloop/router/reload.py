"""Notices changes of the configuration, the API keys and the certificate, without a restart."""

import asyncio
import logging
from hashlib import sha256
from pathlib import Path

from kvloop.api.contract import ContractError
from kvloop.router.app import App
from kvloop.router.config import load

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Kubernetes itself takes up to a minute to bring a changed ConfigMap or Secret into the pod."""


class Reloader:
    """Applies the file whenever its content changes; a file with mistakes is told of, and changes nothing."""

    def __init__(self, app: App, path: Path) -> None:
        self._app = app
        self._path = path
        self._seen = self._digest()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self.look()

    def look(self) -> None:
        """Apply what has changed, if anything has."""
        try:
            digest = self._digest()
        except OSError:
            return  # a volume that is being exchanged: the next look sees it whole
        if digest == self._seen:
            return
        self._seen = digest
        try:
            self._app.apply(load(self._path))
        except (ContractError, OSError) as error:
            log.error("the configuration stays as it was: %s", error)  # noqa: TRY400 (a user's mistake, not ours)
        else:
            log.info("configuration reloaded from %s", self._path)

    def _digest(self) -> bytes:
        config = self._app.config
        folder, tls = config.api_keys_folder, config.listen.tls
        paths = [self._path, *((tls.cert_file, tls.key_file) if tls is not None else ())]
        if folder is not None and folder.is_dir():
            paths += sorted(path for path in folder.iterdir() if path.is_file())
        digest = sha256()
        for path in paths:
            content = path.read_bytes() if path.is_file() else b""
            digest.update(b"%b\0%d\0%b" % (str(path).encode(), len(content), content))
        return digest.digest()
