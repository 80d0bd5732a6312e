"""Writes the approval of a pending change: its digest in an annotation, on the version that was shown.

Called by `herdsman approve` and by the web console. The loop compares the digest with the change that it would make.
"""

from __future__ import annotations

from automation.places.service_view import pending_of
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_APPROVED
from program.dialects.registry import kind_of

FIELD_MANAGER = "herdsman-approve"
TRIES = 10


def write_approval(client: KubeClient, service: Json, pending: Json) -> None:
    """Write the digest on the version that was shown. Raises Conflict when it was edited since.

    A status update of the loop makes a new version as well. If the same change is still pending then, the write is
    repeated.
    """
    metadata, kind = service["metadata"], kind_of(service)
    for _ in range(TRIES):
        body = {
            "metadata": {
                "resourceVersion": service["metadata"]["resourceVersion"],
                "annotations": {ANNOTATION_APPROVED: pending["digest"]},
            }
        }
        try:
            client.patch(kind, metadata["namespace"], metadata["name"], body, field_manager=FIELD_MANAGER)
            return
        except Conflict:
            service = client.get(kind, metadata["namespace"], metadata["name"])
            now = pending_of(service) or {}
            same = service["metadata"]["uid"] == metadata["uid"] and now.get("digest") == pending["digest"]
            if not same or service["metadata"].get("generation") != metadata.get("generation"):
                raise
    raise Conflict(409, "Conflict", "the service changed at each attempt to write the approval")
