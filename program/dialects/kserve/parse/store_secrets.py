"""The annotations of a store's Secret that the pods of a service depend on. Pure."""

from __future__ import annotations

from kubeapi.json_types import Json

ANNOTATIONS_OF_STORES = "serving.kserve.io/s3-"
"""Prefix of the annotations with an S3 store's address and options."""
_KEPT = ("name", "namespace", "uid", "resourceVersion")


def store_secret(metadata: Json) -> Json:
    """Return a Secret with only its identity and its annotations about a store.

    Other annotations are dropped, because `kubectl apply` stores all values of the Secret in one of them.
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
