"""The annotations of a store's Secret that the pods of a service depend on. Pure."""

from __future__ import annotations

from kubeapi.json_types import Json

ANNOTATIONS_OF_STORES = "serving.kserve.io/s3-"
"""How annotations begin that say where an S3 store is and how it is reached."""
_KEPT = ("name", "namespace", "uid", "resourceVersion")


def store_secret(metadata: Json) -> Json:
    """Return a Secret with no more than its name and what its annotations say of a store.

    Other annotations are dropped: `kubectl apply` keeps all values of the Secret in one of them.
    """
    annotations = metadata.get("annotations") or {}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            **{name: metadata[name] for name in _KEPT if name in metadata},
            "annotations": {
                key: value for key, value in sorted(annotations.items()) if key.startswith(ANNOTATIONS_OF_STORES)
            },
        },
    }
