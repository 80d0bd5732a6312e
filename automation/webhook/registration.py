"""Tells the API server where conversions are made: `spec.conversion` of KServe's CRDs.

Only CRDs of ours are changed, unless the operator says otherwise: those of the peer have its own webhook, which works
as long as its controller runs. Until a CRD of ours is told, it serves its stored version alone; then both.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import structlog

from kubeapi import kinds
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import Conflict, Invalid, NotFound
from kubeapi.json_types import Json

log = structlog.get_logger(__name__)

CRDS = (
    "llminferenceservices.serving.kserve.io",
    "llminferenceserviceconfigs.serving.kserve.io",
)
PART_OF = "app.kubernetes.io/part-of"


@dataclass(frozen=True)
class Endpoint:
    """Where the API server finds the webhook, and by which authority it knows it."""

    path: str
    authority: bytes
    """PEM; while a certificate is replaced, of both authorities."""
    url: str = ""
    """`https://host:port`; empty where a Service is named."""
    service: tuple[str, str, int] | None = None
    """Namespace, name and port of a Service before the loop."""

    def conversion(self) -> Json:
        """Write it as `spec.conversion` of a CRD."""
        where: Json = {"caBundle": base64.b64encode(self.authority).decode()}
        if self.service is not None:
            namespace, name, port = self.service
            where["service"] = {"namespace": namespace, "name": name, "port": port, "path": self.path}
        else:
            where["url"] = f"{self.url}{self.path}"
        webhook = {"clientConfig": where, "conversionReviewVersions": ["v1"]}
        return {"strategy": "Webhook", "webhook": webhook}


def register(client: KubeClient, endpoint: Endpoint, *, peers_too: bool) -> bool:
    """See to it that the CRDs lead here; returns whether all of them do. Raises ApiError.

    CRDs that are not there, and those of the peer unless `peers_too`, need not.
    """
    told = [_register(client, name, endpoint, peers_too=peers_too) for name in CRDS]
    return all(told)


def _register(client: KubeClient, name: str, endpoint: Endpoint, *, peers_too: bool) -> bool:
    try:
        crd = client.get(kinds.CRDS, None, name)
    except NotFound:
        return True
    ours = (crd["metadata"].get("labels") or {}).get(PART_OF) == "herdsman"
    if not ours and not peers_too:
        return True
    wanted = endpoint.conversion()
    spec = crd["spec"]
    changes: list[Json] = []
    if spec.get("conversion") != wanted:
        changes.append({"op": "add", "path": "/spec/conversion", "value": wanted})
    changes += [
        {"op": "replace", "path": f"/spec/versions/{index}/served", "value": True}
        for index, version in enumerate(spec["versions"])
        if ours and not version["served"]
    ]
    if not changes:
        return True
    unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": crd["metadata"]["resourceVersion"]}
    try:
        client.patch(kinds.CRDS, None, name, [unchanged, *changes], content_type=JSON_PATCH)
    except (Conflict, Invalid) as error:
        if _version(client, name) == crd["metadata"]["resourceVersion"]:
            log.warning("The API server refused where conversions are made", crd=name, why=str(error))
        else:
            # Somebody else changed it at the same moment; the next look comes soon.
            log.info("The CRD was not told where conversions are made", crd=name, why=str(error))
        return False
    log.info("Told the CRD where conversions are made", crd=name)
    return True


def _version(client: KubeClient, name: str) -> str:
    """Return the resourceVersion of a CRD; empty where it is gone."""
    try:
        return str(client.get(kinds.CRDS, None, name)["metadata"]["resourceVersion"])
    except NotFound:
        return ""
