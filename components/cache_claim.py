"""The volume claim that keeps the weights of a whole namespace. Called by `components.render`."""

from __future__ import annotations

from components import naming
from components.object_metadata import adoption
from components.options import RenderOptions
from components.rendered import RenderedObject
from program.desired.base import JsonObject
from program.desired.service import DesiredService


def cache_claim(desired: DesiredService, options: RenderOptions) -> RenderedObject:
    """Build the claim: the same for every service of a namespace, and owned by none, so that no delete takes it."""
    metadata: JsonObject = {
        "name": naming.CACHE_CLAIM,
        "namespace": desired.key.namespace,
        # LLMKube's labels, its managed-by too: a claim that it made stays byte for byte what it was.
        "labels": {
            "app.kubernetes.io/name": "llmkube",
            "app.kubernetes.io/component": "model-cache",
            "app.kubernetes.io/managed-by": "llmkube-controller",
        },
    }
    if notes := adoption(desired):
        metadata["annotations"] = notes
    spec: JsonObject = {
        "accessModes": [options.cache_access_mode],
        "resources": {"requests": {"storage": options.cache_size}},
    }
    if options.cache_storage_class:
        spec["storageClassName"] = options.cache_storage_class
    manifest: JsonObject = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    return RenderedObject("claim", naming.TYPE_CACHE, manifest)
