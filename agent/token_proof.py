"""Proves that a client knows an agent's token, without sending the token.

A client sends this proof when it did not choose the agent's address itself, for example when the address comes from a
Host's status. `agent.client.http` makes the proof and `agent.server.api.http_api` compares it. The proof is valid for
one request and for the certificate that the client pins: its receiver cannot use it elsewhere. Imports no other module
of the project.
"""

from __future__ import annotations

import hashlib
import hmac

SCHEME = "Herdsman-Proof"
"""Scheme of the Authorization header."""


def proof(token: str, *, fingerprint: str, method: str, path: str) -> str:
    """Return the proof for one request in hex.

    `path` includes the query. `fingerprint` is the SHA-256 of the certificate.
    """
    text = "\n".join(("herdsman agent request", fingerprint.replace(":", "").lower(), method, path))
    return hmac.new(token.encode(), text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
