"""Reads a Secret's metadata with the rights to create and patch alone, so that no value reaches the loop.

Called by `certificates.issuing` and `store_secrets`. ADR 28 gives the reason why the loop has no right to get Secrets.
"""

from __future__ import annotations

from components import naming
from kubeapi import kinds
from kubeapi.client import MERGE_PATCH, KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from kubeapi.rest import METADATA


def secret_metadata(client: KubeClient, namespace: str, name: str, *, timeout_s: float | None = None) -> Json | None:
    """Return a Secret's metadata, which is the answer to a patch that changes nothing; None without a Secret.

    Raises ApiError.
    """
    try:
        answer = client.request(
            "PATCH",
            kinds.SECRETS.path(namespace, name),
            query={"fieldManager": naming.FIELD_MANAGER},
            body={},
            content_type=MERGE_PATCH,
            accept=METADATA,
            **({} if timeout_s is None else {"timeout_s": timeout_s}),
        )
    except NotFound:
        return None
    metadata: Json = answer["metadata"]
    return metadata
