"""Proves that a client knows an agent's token, without sending it.

A client sends this to an agent whose address it did not choose itself, such as the one that a Host's status names:
`agent.client.http` makes the proof, `agent.server.api.http_api` compares it. The proof is bound to one request and to
the certificate that the client pins, so whoever receives it can use it nowhere else. Imports nothing of the project.
"""

from __future__ import annotations

import hashlib
import hmac

SCHEME = "Herdsman-Proof"
"""Scheme of the Authorization header."""


def proof(token: str, *, fingerprint: str, method: str, path: str) -> str:
    """Return the proof for one request, in hex. `path` has the query; `fingerprint` is the certificate's SHA-256."""
    text = "\n".join(("herdsman agent request", fingerprint.replace(":", "").lower(), method, path))
    return hmac.new(token.encode(), text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
