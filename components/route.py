"""Renders the HTTPRoute or Ingress by which clients outside the cluster reach a service. Called by `render`."""

from __future__ import annotations

from components import naming
from components.object_metadata import object_metadata, selector_labels
from components.rendered import RenderedObject
from components.service import service_port
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.service import DesiredService, Exposure

MODEL_HEADER = "x-ai-eg-model"
"""Envoy AI Gateway reads the model out of the request's body and puts it here before it chooses a route."""
LONGEST_ANSWER = "1h"
"""A long completion streams for minutes; gateways cut requests after 15 s unless told otherwise."""


def http_route(desired: DesiredService, expose: Exposure) -> RenderedObject:
    """Build the HTTPRoute. The Gateway decides which namespaces may attach routes to it."""
    parent: Json = {"name": expose.gateway}
    if expose.gateway_namespace:
        parent["namespace"] = expose.gateway_namespace
    match: Json = {"path": {"type": "PathPrefix", "value": "/"}}
    if expose.model_name:
        match["headers"] = [{"type": "Exact", "name": MODEL_HEADER, "value": expose.model_name}]
    backend: Json = {"name": naming.service_name(desired.key.name), "port": service_port(desired)}
    spec: Json = {
        "parentRefs": [parent],
        "rules": [{"matches": [match], "backendRefs": [backend], "timeouts": {"request": LONGEST_ANSWER}}],
    }
    if expose.host:
        spec["hostnames"] = [expose.host]
    manifest: Json = {
        "apiVersion": kinds.HTTP_ROUTES.api_version,
        "kind": kinds.HTTP_ROUTES.kind,
        "metadata": _metadata(desired),
        "spec": spec,
    }
    return RenderedObject("route", naming.TYPE_EXPOSURE, manifest)


def ingress(desired: DesiredService, expose: Exposure) -> RenderedObject:
    """Build the Ingress. It has no field for timeouts: each controller has an annotation of its own, left to users."""
    service: Json = {"name": naming.service_name(desired.key.name), "port": {"name": "http"}}
    rule: Json = {"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": service}}]}}
    if expose.host:
        rule["host"] = expose.host
    spec: Json = {"rules": [rule]}
    if expose.ingress_class:
        spec["ingressClassName"] = expose.ingress_class
    if expose.tls_secret:
        spec["tls"] = [{"secretName": expose.tls_secret, **({"hosts": [expose.host]} if expose.host else {})}]
    manifest: Json = {
        "apiVersion": kinds.INGRESSES.api_version,
        "kind": kinds.INGRESSES.kind,
        "metadata": _metadata(desired),
        "spec": spec,
    }
    return RenderedObject("ingress", naming.TYPE_EXPOSURE, manifest)


def _metadata(desired: DesiredService) -> Json:
    return object_metadata(desired, naming.service_name(desired.key.name), selector_labels(desired))
