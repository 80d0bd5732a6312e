"""Registers the conversion webhook with the API server: `spec.conversion` of KServe's CRDs.

Only CRDs that Herdsman installed are changed, unless the settings include KServe's own. Those have KServe's webhook,
which works as long as its controller runs. A CRD serves only its stored version until it is registered.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import structlog

from kubeapi import kinds
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import Conflict, Invalid
from kubeapi.json_types import Json

log = structlog.get_logger(__name__)

CRDS = (
    "llminferenceservices.serving.kserve.io",
    "llminferenceserviceconfigs.serving.kserve.io",
)
PART_OF = "app.kubernetes.io/part-of"


@dataclass(frozen=True)
class Endpoint:
    """The address of the webhook for the API server, and the authority of its certificate."""

    path: str
    authority: bytes
    """PEM. During the replacement of a certificate, the authorities of both."""
    url: str = ""
    """`https://host:port`; empty if a Service is named."""
    service: tuple[str, str, int] | None = None
    """Namespace, name and port of a Service in front of the loop."""

    def conversion(self) -> Json:
        """Return the value of `spec.conversion` for a CRD."""
        where: Json = {"caBundle": base64.b64encode(self.authority).decode()}
        if self.service is not None:
            namespace, name, port = self.service
            where["service"] = {"namespace": namespace, "name": name, "port": port, "path": self.path}
        else:
            where["url"] = f"{self.url}{self.path}"
        webhook = {"clientConfig": where, "conversionReviewVersions": ["v1"]}
        return {"strategy": "Webhook", "webhook": webhook}


def register(client: KubeClient, endpoint: Endpoint, *, peers_too: bool) -> bool:
    """Register the endpoint in the CRDs. Return whether all of them have it. Raises ApiError.

    Missing CRDs do not count, and KServe's own only with `peers_too`.
    """
    told = [_register(client, name, endpoint, peers_too=peers_too) for name in CRDS]
    return all(told)


def _register(client: KubeClient, name: str, endpoint: Endpoint, *, peers_too: bool) -> bool:
    crd = client.find(kinds.CRDS, None, name)
    if crd is None:
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
            log.warning("The API server refused the address of the conversion webhook", crd=name, why=str(error))
        else:
            # Another client changed the CRD at the same moment; the next attempt follows soon.
            log.info("Could not register the conversion webhook in a CRD", crd=name, why=str(error))
        return False
    log.info("Registered the conversion webhook in a CRD", crd=name)
    return True


def _version(client: KubeClient, name: str) -> str:
    """Return the resourceVersion of a CRD; empty when it does not exist."""
    crd = client.find(kinds.CRDS, None, name)
    return str(crd["metadata"]["resourceVersion"]) if crd is not None else ""
