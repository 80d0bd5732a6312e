"""A bearer token that another program writes into a file. Used by `kubeapi.config` and `kubeapi.kubeconfig`."""

from __future__ import annotations

import pathlib
import time

from kubeapi.errors import ConfigInvalid

TOKEN_REREAD_S = 60.0
"""Files with tokens are rotated by whoever wrote them; this is how long one that was read is used."""


class TokenFile:
    """The Authorization header with the token of a file, read again every minute.

    While the file cannot be read, the token that was read last holds, and before there is one, `otherwise`. Without
    either, the call raises ConfigInvalid.
    """

    def __init__(self, path: pathlib.Path, otherwise: str = "") -> None:
        self._path = path
        self._read_at = float("-inf")
        self._token = otherwise

    def __call__(self) -> str:
        if time.monotonic() - self._read_at > TOKEN_REREAD_S:
            try:
                if not (token := self._path.read_text().strip()):
                    raise ConfigInvalid(f"the token in {self._path} is empty")
                self._token, self._read_at = token, time.monotonic()
            except (OSError, ValueError, ConfigInvalid) as error:
                if not self._token:
                    raise ConfigInvalid(f"the token cannot be read: {error}") from error
        return f"Bearer {self._token}"
