"""Service of inference.llmaz.io/v1alpha1: pods, or groups of pods, that the user writes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, optional, required, rule
from program.dialects.llmaz.schema.common import KEPT, MOST, ResourceList
from program.dialects.llmaz.schema.playground import ModelClaims

RestartPolicy = Literal["Default", "RecreateGroupOnPodRestart", "None"]


class Named(CrdModel):
    """As Kubernetes writes it."""

    model_config = KEPT
    name: str = required("Name of the entry.", min_length=1)


class ContainerPort(CrdModel):
    """As Kubernetes writes it."""

    model_config = KEPT
    container_port: int = required("Port that the container listens on.", ge=1, le=65535)
    name: str | None = optional("Name of the port.")


class VolumeMount(Named):
    mount_path: str = required("Path of the volume in the container.", min_length=1)


class ContainerResources(CrdModel):
    """As Kubernetes writes them."""

    model_config = KEPT
    limits: ResourceList = optional("Maximum resources of the container.", {})
    requests: ResourceList = optional("Resources that the scheduler reserves on a node.", {})


class Container(Named):
    args: list[str] = optional("Arguments. Variables in braces are not replaced.", [])
    command: list[str] = optional("Entrypoint.", [])
    env: list[Named] = optional("Environment.", [])
    image: str | None = optional("Image.")
    ports: list[ContainerPort] = optional("Ports.", [])
    resources: ContainerResources | None = optional("Resources of the container.")
    volume_mounts: list[VolumeMount] = optional("Volumes in the container.", [])


class NodeSelectorTerm(CrdModel):
    """As Kubernetes writes it."""

    model_config = KEPT
    match_expressions: list[dict[str, Any]] = optional("Labels that a node must have.", [])


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
    affinity: Affinity | None = optional("Affinity of the pods.")
    containers: list[Container] = required(
        "Containers; `model-runner` is the one that serves.", min_length=1, max_length=MOST
    )
    init_containers: list[Named] = optional("Init containers, which end before the other containers start.", [])
    scheduler_name: str | None = optional("Name of the scheduler of the pods.")
    volumes: list[Named] = optional("Volumes.", [])


class TemplateMetadata(CrdModel):
    """Labels and annotations of the pods."""

    model_config = KEPT
    annotations: dict[str, str] = optional("Annotations.", {})
    labels: dict[str, str] = optional("Labels.", {})


class PodTemplate(CrdModel):
    metadata: TemplateMetadata | None = optional("Labels and annotations of the pods.")
    spec: PodSpec = required("The pods.")


class WorkerTemplate(PodTemplate):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "self.spec.containers.exists(c, c.name == 'model-runner')",
                    "one of the containers must be `model-runner`",
                    field=".spec.containers",
                )
            ]
        }
    )


class WorkloadTemplate(CrdModel):
    leader_template: PodTemplate | None = optional("The leader of a group; like the workers when absent.")
    restart_policy: RestartPolicy = optional(
        "Restart policy of a group after one of its containers restarts.", "RecreateGroupOnPodRestart"
    )
    size: int = optional("Number of pods in a group, including the leader.", 1, ge=1)
    sub_group_policy: dict[str, Any] | None = optional("Subgroups of a group, in the format of a LeaderWorkerSet.")
    worker_template: WorkerTemplate = required("Template of the workers, or of the only pod.")


class RollingUpdateConfiguration(CrdModel):
    max_surge: int | str = optional("Maximum number of replicas above the wanted number during a rollout.", 0)
    max_unavailable: int | str = optional("Maximum number of replicas that may be unavailable during a rollout.", 1)
    partition: int | None = optional("Groups below this index keep the old template.", ge=0)


class RolloutStrategy(CrdModel):
    rolling_update_configuration: RollingUpdateConfiguration | None = optional("Strategy of rollouts.")
    type: Literal["RollingUpdate"] = optional("Replicas are replaced in steps.", "RollingUpdate")


class ServiceSpec(CrdModel):
    """The wanted pods and their models."""

    model_claims: ModelClaims | None = optional("Models that the pods download.")
    replicas: int = optional("Number of pods, or of groups of pods.", 1, ge=0)
    rollout_strategy: RolloutStrategy | None = optional("Strategy of rollouts.")
    workload_template: WorkloadTemplate = required("The pods.")
