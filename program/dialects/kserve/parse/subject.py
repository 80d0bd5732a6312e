"""An LLMInferenceService with its combined spec, as the modules of this package pass it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.dialect import Lookup
from program.dialects.kserve.configuration.combine import Combined
from program.dialects.kserve.settings import Settings

MAIN = "main"
"""The container that serves, in every pod of a service."""
STOP = "serving.kserve.io/stop"
"""Annotation of a service: `"true"`, in upper or lower case, removes all its objects until the annotation is
removed.
"""


@dataclass(frozen=True)
class Subject:
    """A service with its combined configuration."""

    cr: Json
    combined: Combined
    look: Lookup
    counted: bool = False
    """True: the pods that hashes are computed from (`counted`). False: the pods to create."""

    @property
    def name(self) -> str:
        """Name of the custom resource."""
        return str(self.cr["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Namespace of the custom resource."""
        return str(self.cr["metadata"].get("namespace") or "default")

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the custom resource."""
        return self.cr["metadata"].get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of the custom resource."""
        return self.cr["metadata"].get("annotations") or {}

    @property
    def spec(self) -> Json:
        """The merged and rendered spec."""
        return self.combined.spec

    @property
    def settings(self) -> Settings:
        """The settings of all services of the cluster."""
        return self.combined.settings

    @property
    def model_name(self) -> str:
        """The model's name for clients."""
        return self.combined.model_name

    def at(self, *path: str) -> Any:
        """Return the value at a path of the spec; None if a part of the path is absent."""
        return value_at(self.spec, *path)


def value_at(value: Any, *path: str) -> Any:
    """Return the value at a path of objects; None if a part of the path is absent."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def is_stopped(cr: Json) -> bool:
    """Return whether the stop annotation stops a service."""
    return str((cr["metadata"].get("annotations") or {}).get(STOP)).lower() == "true"


def main_container(pod_spec: Json | None, *, field: str) -> Json:
    """Return the container that serves. Raises SpecInvalid if there is none."""
    for container in (pod_spec or {}).get("containers") or ():
        if container.get("name") == MAIN:
            found: Json = container
            return found
    raise SpecInvalid(
        field=f"{field}.containers", why=f"has no container named `{MAIN}`; give this name to the container that serves"
    )
