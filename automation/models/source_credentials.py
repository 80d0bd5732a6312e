"""Reads the Secret that a Model names, if a user allowed the loop to do so (docs/install/secrets-reader.yaml).

Called by `model_probe` once per probe. Credentials are kept in memory for one probe only, and are not written into a
status, a log or an error.
"""

from __future__ import annotations

import base64
import binascii

from agent.server.models.source_access import Credentials
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, NotFound


class SecretUnreadable(Exception):
    """The loop cannot read the credentials; a pod may still get them. `reason` is for a condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class SecretReader:
    """Reads Secrets by name with the loop's own rights. Thread-safe."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def read(self, namespace: str, name: str) -> Credentials:
        """Return the credentials in a Secret. Raises SecretUnreadable, with a remedy if there is one."""
        try:
            secret = self._client.get(kinds.SECRETS, namespace, name)
        except Forbidden:
            raise SecretUnreadable(
                "SourceSecretNotReadable",
                f"the loop may not read Secret `{name}`; pods check the source when they start "
                "(to let the loop check it too, apply docs/install/secrets-reader.yaml)",
            ) from None
        except NotFound:
            raise SecretUnreadable(
                "SourceSecretMissing", f"Secret `{name}` does not exist in namespace `{namespace}`; pods wait for it"
            ) from None
        except ApiError as error:
            raise SecretUnreadable("SourceSecretNotReadable", f"cannot read Secret `{name}`: {error.reason}") from None
        return Credentials.of(_decoded(secret.get("data") or {}))


def _decoded(data: dict[str, str]) -> dict[str, str]:
    values = {}
    for key, text in data.items():
        try:
            values[key] = base64.b64decode(text).decode()
        except (binascii.Error, UnicodeDecodeError):
            # Another key of the same Secret, a certificate perhaps; a container would not get it either.
            continue
    return values
