"""Pod templates as users of llmaz's Services write them: what the dialect reads of them has a type, all else is kept.

`program.dialects.pod_fields` checks the rest. Used by `service_schema`.
"""

from __future__ import annotations

from typing import Any

from program.dialects.crd_schema import CrdModel, optional, required
from program.dialects.llmaz.common_schema import KEPT, MOST, ResourceList


class Named(CrdModel):
    """As Kubernetes writes it."""

    model_config = KEPT
    name: str = required("Its name.", min_length=1)


class ContainerPort(CrdModel):
    """As Kubernetes writes it."""

    model_config = KEPT
    container_port: int = required("Where the container listens.", ge=1, le=65535)
    name: str | None = optional("Its name.")


class VolumeMount(Named):
    mount_path: str = required("Where the volume is in the container.", min_length=1)


class ContainerResources(CrdModel):
    """As Kubernetes writes them."""

    model_config = KEPT
    limits: ResourceList = optional("Most that the container may use.", {})
    requests: ResourceList = optional("What a node must have free.", {})


class Container(Named):
    args: list[str] = optional("Arguments; variables in braces are not filled in.", [])
    command: list[str] = optional("Entrypoint.", [])
    env: list[Named] = optional("Environment.", [])
    image: str | None = optional("Image.")
    ports: list[ContainerPort] = optional("Ports.", [])
    resources: ContainerResources | None = optional("What the container asks for.")
    volume_mounts: list[VolumeMount] = optional("Volumes in the container.", [])


class NodeSelectorTerm(CrdModel):
    """As Kubernetes writes it."""

    model_config = KEPT
    match_expressions: list[dict[str, Any]] = optional("What the node's labels must be.", [])


class NodeSelector(CrdModel):
    """As Kubernetes writes it."""

    model_config = KEPT
    node_selector_terms: list[NodeSelectorTerm] = optional("Alternatives.", [])


class NodeAffinity(CrdModel):
    """As Kubernetes writes it."""

    model_config = KEPT
    preferred_during_scheduling_ignored_during_execution: list[dict[str, Any]] = optional("Preferences.", [])
    required_during_scheduling_ignored_during_execution: NodeSelector | None = optional("Demands.")


class Affinity(CrdModel):
    """As Kubernetes writes it."""

    model_config = KEPT
    node_affinity: NodeAffinity | None = optional("Which nodes.")


class PodSpec(CrdModel):
    """The pod's spec, as Kubernetes writes it."""

    model_config = KEPT
    affinity: Affinity | None = optional("Where the pods may run.")
    containers: list[Container] = required(
        "Containers; `model-runner` is the one that serves.", min_length=1, max_length=MOST
    )
    init_containers: list[Named] = optional("Containers that end before the others start.", [])
    scheduler_name: str | None = optional("Who schedules the pods.")
    volumes: list[Named] = optional("Volumes.", [])


class TemplateMetadata(CrdModel):
    """Labels and annotations of the pods."""

    model_config = KEPT
    annotations: dict[str, str] = optional("Annotations.", {})
    labels: dict[str, str] = optional("Labels.", {})


class PodTemplate(CrdModel):
    metadata: TemplateMetadata | None = optional("Labels and annotations of the pods.")
    spec: PodSpec = required("The pods.")
