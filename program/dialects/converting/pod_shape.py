"""What readers rely on in a PodSpec that its dialect leaves to the API server: lists, maps and names. Pure."""

from __future__ import annotations

from typing import Any

from kubeapi.json_types import Json
from program.dialects.crd_schema import CrdModel, optional
from program.dialects.llmaz.common_schema import KEPT
from program.dialects.llmaz.pod_schema import Named, VolumeMount
from program.dialects.reading import read, without_nulls


class _Handler(CrdModel):
    model_config = KEPT
    http_get: dict[str, Any] | None = optional("As Kubernetes writes it.")
    tcp_socket: dict[str, Any] | None = optional("As Kubernetes writes it.")
    grpc: dict[str, Any] | None = optional("As Kubernetes writes it.")


class _Resources(CrdModel):
    model_config = KEPT
    limits: dict[str, int | float | str] = optional("As Kubernetes writes them.", {})
    requests: dict[str, int | float | str] = optional("As Kubernetes writes them.", {})


class _Container(CrdModel):
    model_config = KEPT
    name: str | None = optional("Its name.")
    image: str | None = optional("Its image.")
    args: list[str] = optional("Its arguments.", [])
    command: list[str] = optional("Its entrypoint.", [])
    env: list[Named] = optional("Its environment.", [])
    resources: _Resources | None = optional("What it asks for.")
    security_context: dict[str, Any] | None = optional("As Kubernetes writes it.")
    volume_mounts: list[VolumeMount] = optional("Its volumes.", [])
    startup_probe: _Handler | None = optional("As Kubernetes writes it.")
    liveness_probe: _Handler | None = optional("As Kubernetes writes it.")
    readiness_probe: _Handler | None = optional("As Kubernetes writes it.")


class _Pod(CrdModel):
    model_config = KEPT
    containers: list[_Container] = optional("Its containers.", [])
    volumes: list[Named] = optional("Its volumes.", [])
    node_selector: dict[str, str] = optional("Its nodes.", {})
    security_context: dict[str, Any] | None = optional("As Kubernetes writes it.")


def check_pod(pod: Json | None, *, field: str) -> None:
    """Raise SpecInvalid for what is no PodSpec at all."""
    if pod is not None:
        read(_Pod, without_nulls(pod), field=field)
