"""The volume claim that keeps weights: of a whole namespace, or of one service. Called by `components.render`."""

from __future__ import annotations

from components import naming
from components.object_metadata import adoption, owner_reference
from components.options import RenderOptions
from components.rendered import RenderedObject
from kubeapi.json_types import Json
from program.desired.service import DesiredService


def cache_claim(desired: DesiredService, options: RenderOptions) -> RenderedObject:
    """Build the claim.

    That of a namespace is the same for all services and owned by none, so that no delete takes it; a service's own
    goes with the service.
    """
    metadata: Json = {
        "name": naming.cache_claim(desired.key.name, options.claim_mode),
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
    if options.claim_mode == "perService" and desired.owner is not None:
        metadata["ownerReferences"] = [owner_reference(desired.owner)]
    spec: Json = {
        "accessModes": [options.cache_access_mode],
        "resources": {"requests": {"storage": options.cache_size}},
    }
    if options.cache_storage_class:
        spec["storageClassName"] = options.cache_storage_class
    manifest: Json = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    return RenderedObject("claim", naming.TYPE_CACHE, manifest)
