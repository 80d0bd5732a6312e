"""Services on a real API server as a loop creates them, without a loop: rendered, and applied with the same calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from components import naming
from components.render import RenderOptions, render
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import parse_service

SOURCE = "https://example.com/base.gguf?signature=hunter2"


def model_cr(name: str = "base", namespace: str = "", **spec: Any) -> Json:
    """A Model document as a user writes it."""
    return _document("Model", name, namespace, {"source": SOURCE, **spec})


def service_cr(name: str = "chat", namespace: str = "", *, annotations: Json | None = None, **spec: Any) -> Json:
    """An InferenceService document as a user writes it."""
    return _document("InferenceService", name, namespace, {"modelRef": "base", **spec}, annotations)


def _document(kind: str, name: str, namespace: str, spec: Json, annotations: Json | None = None) -> Json:
    metadata: Json = {"name": name, **({"namespace": namespace} if namespace else {})}
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": kinds.MODELS.api_version, "kind": kind, "metadata": metadata, "spec": spec}


def apply_model(client: KubeClient, namespace: str, document: Json) -> Json:
    """Apply a Model, and write into its status that its source was inspected."""
    applied = client.apply(kinds.MODELS, namespace, document, field_manager="kubectl", force=True)
    known = model_of(applied)
    status = {
        "phase": "Ready",
        "path": f"/models/{known.cache_key}/{known.file_name or 'base.gguf'}",
        "cacheKey": known.cache_key,
        "sourceContentLength": 3_000_000_000,
        "observedGeneration": applied["metadata"]["generation"],
    }
    return client.patch(kinds.MODELS, namespace, document["metadata"]["name"], {"status": status}, subresource="status")


def make(
    client: KubeClient, namespace: str, document: Json, model: Json, **options: Any
) -> tuple[Json, RenderedService]:
    """Apply a service, and create its objects as the loop does. Return the custom resource and the rendered objects."""
    cr = client.apply(kinds.INFERENCE_SERVICES, namespace, document, field_manager="kubectl", force=True)
    rendered = render(parse_service(cr, model_of(model)), RenderOptions(**options))
    for each in (*rendered.shared, *rendered.objects):
        kind = client.mapping(each.manifest["apiVersion"], each.kind)
        client.apply(kind, namespace, each.manifest, field_manager=naming.FIELD_MANAGER, force=True)
    return cr, rendered


def versions(client: KubeClient, namespace: str, listed: Iterable[Any] = ()) -> dict[str, str]:
    """Return the version of every object of a namespace. Equal results mean that nothing was written in between."""
    found = {}
    for kind in (
        kinds.MODELS,
        kinds.INFERENCE_SERVICES,
        kinds.DEPLOYMENTS,
        kinds.SERVICES,
        kinds.CLAIMS,
        kinds.AUTOSCALERS,
        kinds.HOST_PROCESSES,
        kinds.DISRUPTION_BUDGETS,
        kinds.CONFIG_MAPS,
        kinds.SECRETS,
        kinds.LEASES,
        *listed,
    ):
        for item in client.list(kind, namespace)["items"]:
            found[f"{kind.kind}/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
    return found
