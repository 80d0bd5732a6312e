"""Tokens of a host's ServiceAccount: what they say of themselves, and how the API server makes new ones.

A token is a signed JSON document. Only the API server checks the signature; these functions read the times, to know
when a new token is needed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass

from kubeapi.client import KubeClient
from kubeapi.kinds import SERVICE_ACCOUNTS

LIFE_S = 30 * 86400
"""The life that is asked for. The API server may give less (`--service-account-max-token-expiration`)."""
_LONGEST = 16 * 1024


class TokenWrong(Exception):
    """A text is no token of a ServiceAccount. The message does not contain the text."""


@dataclass(frozen=True)
class Claims:
    """What a token says of itself. Times are in seconds of Unix time."""

    subject: str
    """`system:serviceaccount:NAMESPACE:NAME`."""
    issued_at: float
    expires_at: float

    @property
    def life_s(self) -> float:
        return self.expires_at - self.issued_at


def claims_of(token: str) -> Claims:
    """Read a token without checking its signature. Raises TokenWrong."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > _LONGEST:
        raise TokenWrong("it is no token of a ServiceAccount")
    try:
        body = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        found = Claims(str(body["sub"]), float(body["iat"]), float(body["exp"]))
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        raise TokenWrong("it is no token of a ServiceAccount that ends") from None
    if not 0 <= found.issued_at < found.expires_at < 1e12:
        raise TokenWrong("its times are wrong")
    return found


def fingerprint(token: str) -> str:
    """Return a short name of a token from which nobody can compute it."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]


def request_token(client: KubeClient, *, namespace: str, account: str, life_s: int = LIFE_S) -> tuple[str, str]:
    """Have the API server make a token of a ServiceAccount. Returns it and its end in RFC 3339. Raises ApiError."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": life_s},
    }
    status = client.request("POST", SERVICE_ACCOUNTS.path(namespace, account, "token"), body=body)["status"]
    return str(status["token"]), str(status["expirationTimestamp"])
