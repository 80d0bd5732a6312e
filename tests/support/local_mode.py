"""Documents of local mode: a Model whose file is on this machine, and an InferenceService."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

API = "inference.llmkube.dev/v1alpha1"


def model_document(name: str, *, source: str = "") -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "Model",
        "metadata": {"name": name},
        "spec": {"source": source or f"file:///models/{name}.gguf", "format": "gguf"},
    }


def service_document(name: str, *, annotations: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, **({"annotations": dict(annotations)} if annotations else {})}
    return {"apiVersion": API, "kind": "InferenceService", "metadata": metadata, "spec": {"modelRef": name, **spec}}


def model(name: str, *, source: str = "") -> str:
    """Return a Model as YAML."""
    dumped: str = yaml.safe_dump(model_document(name, source=source), sort_keys=False)
    return dumped


def service(name: str, *, annotations: Mapping[str, str] | None = None, **spec: Any) -> str:
    """Return an InferenceService of the Model with its name, as YAML."""
    dumped: str = yaml.safe_dump(service_document(name, annotations=annotations, **spec), sort_keys=False)
    return dumped


def both(name: str, *, path: str = "") -> str:
    """Return a service with its Model."""
    return f"{model(name, source=f'file://{path}' if path else '')}---\n{service(name)}"
