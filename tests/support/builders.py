"""Builders of desired state for tests: `service(replicas=2)` is a whole service with defaults for all other fields."""

from __future__ import annotations

from typing import Any

from program.desired.engines import LlamaCpp
from program.desired.keys import Owner, ServiceKey
from program.desired.model import DesiredModel, ModelSource, SourceKind
from program.desired.service import DesiredService

KEY = "8cc5f1f83d631cc0"


def http_model(**fields: Any) -> DesiredModel:
    """A GGUF file behind a URL, with its name in the cache."""
    source = ModelSource(kind=SourceKind.HTTP, address="https://example.com/model.gguf", path="model.gguf")
    return DesiredModel(**{"name": "base", "source": source, "cache_key": KEY, "file_name": "Base.gguf", **fields})


def file_model(**fields: Any) -> DesiredModel:
    """A GGUF file on the node."""
    source = ModelSource(kind=SourceKind.FILE, address="file:///srv/models/m.gguf", path="/srv/models/m.gguf")
    return http_model(source=source, **fields)


def claim_model(**fields: Any) -> DesiredModel:
    """A file on a PersistentVolumeClaim of the user."""
    source = ModelSource(kind=SourceKind.CLAIM, address="pvc://weights/a/m.gguf", claim="weights", path="a/m.gguf")
    return DesiredModel(name="base", source=source, **fields)


def repository_model(revision: str = "", **fields: Any) -> DesiredModel:
    """A Hugging Face repository that the engine fetches."""
    address = f"hf://org/repo@{revision}" if revision else "org/repo"
    source = ModelSource(kind=SourceKind.REPOSITORY, address=address, repository="org/repo", revision=revision)
    return DesiredModel(name="base", source=source, **fields)


def service(**fields: Any) -> DesiredService:
    """A llama.cpp service `svc` in namespace `ns`."""
    return DesiredService(
        **{
            "key": ServiceKey("llmkube", "ns", "svc"),
            "owner": Owner(
                api_version="inference.llmkube.dev/v1alpha1", kind="InferenceService", name="svc", uid="uid-1"
            ),
            "model": http_model(),
            "engine": LlamaCpp(),
            **fields,
        }
    )
