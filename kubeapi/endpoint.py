"""One cluster and one user of it, as a kubeconfig or a pod's service account describes them.

Made by `kubeapi.config` and `kubeapi.kubeconfig`. `kubeapi.rest` sends the token and the headers of impersonation
(`as`, `as-uid`, `as-groups`, `as-user-extra`) with every request.
"""

from __future__ import annotations

import pathlib
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kubeapi.errors import ConfigInvalid

Headers = tuple[tuple[str, str], ...]

_IN_NAMES = frozenset(string.ascii_letters + string.digits + "!#$&'*+-.^_`|~")
"""Characters that a header's name may contain. `%` is allowed too, but is escaped, since it begins an escape."""


def impersonation_headers(user: Mapping[str, Any]) -> Headers:
    """Return the headers by which the API server acts as another user; empty if the kubeconfig names none.

    Raises ConfigInvalid for a uid, groups or extra values without a user, and for text that is not allowed in a header.
    """
    name, uid = user.get("as") or "", user.get("as-uid") or ""
    groups, extra = user.get("as-groups") or (), user.get("as-user-extra") or {}
    if not name:
        if uid or groups or extra:
            raise ConfigInvalid("`as-uid`, `as-groups` and `as-user-extra` need a user to act as; name it in `as`")
        return ()
    if not isinstance(groups, list | tuple) or not isinstance(extra, dict):
        raise ConfigInvalid("`as-groups` is a list, and `as-user-extra` is a map of lists")
    headers = [("Impersonate-User", name)]
    if uid:
        headers.append(("Impersonate-Uid", uid))
    headers += [("Impersonate-Group", group) for group in groups]
    for key, values in extra.items():
        if not isinstance(values, list | tuple):
            raise ConfigInvalid(f"`as-user-extra` has no list of values for `{key}`")
        headers += [(f"Impersonate-Extra-{_escaped(str(key))}", value) for value in values]
    return tuple((header, _checked(header, value)) for header, value in headers)


def _escaped(key: str) -> str:
    """Return a key for a header's name: in lower case, and with %XX for each byte that is not allowed."""
    return "".join(
        chr(byte) if chr(byte) in _IN_NAMES else f"%{byte:02X}" for byte in key.lower().encode("utf-8", "strict")
    )


def _checked(header: str, value: object) -> str:
    text = str(value)
    if not text.isprintable() or text != text.strip():
        raise ConfigInvalid(f"the value of {header} has a character that is not allowed in a header")
    # A header carries bytes; the API server reads them as UTF-8.
    return text.encode().decode("latin-1")


class ClientCertificate(NamedTuple):
    """A client certificate and its key, both in PEM."""

    certificate: str
    key: str


@dataclass(frozen=True)
class Endpoint:
    """One cluster and one user of it."""

    server: str
    authorization: Callable[[], str | None] = lambda: None
    """Returns the Authorization header of the next request."""
    ca_file: str | None = None
    ca_data: str | None = None
    """Certificates in PEM. `cert_data` is also in PEM, and `key_data` is a key in PEM."""
    cert_file: str | None = None
    cert_data: str | None = None
    key_file: str | None = None
    key_data: str | None = None
    renewed_certificate: Callable[[], ClientCertificate | None] = lambda: None
    """Returns the latest client certificate of an exec plugin, which replaces the others."""
    verify: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    impersonation: Headers = ()
    """Headers of the identity to act as."""


TOKEN_REREAD_S = 60.0
"""Seconds for which a token is used before its file is read again; token files are rotated."""


class TokenFile:
    """The Authorization header with the token of a file, which is read again every minute.

    While the file cannot be read, the last token is used, and before the first read `otherwise`. Without either, the
    call raises ConfigInvalid.
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
