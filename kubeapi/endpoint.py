"""One cluster and one user of it, as a kubeconfig or a pod's service account describes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kubeapi.impersonation import Headers


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
    """Certificates in PEM; so is `cert_data`, and `key_data` is a key in PEM."""
    cert_file: str | None = None
    cert_data: str | None = None
    key_file: str | None = None
    key_data: str | None = None
    renewed_certificate: Callable[[], ClientCertificate | None] = lambda: None
    """Returns the client certificate that an exec plugin gave last; it takes the place of the others."""
    verify: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    impersonation: Headers = ()
    """Headers that name the identity to act as."""
