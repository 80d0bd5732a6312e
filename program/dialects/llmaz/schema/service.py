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
        "What a restarted container means to its group.", "RecreateGroupOnPodRestart"
    )
    size: int = optional("Pods of a group, the leader among them.", 1, ge=1)
    sub_group_policy: dict[str, Any] | None = optional("Parts of a group, as a LeaderWorkerSet writes them.")
    worker_template: WorkerTemplate = required("The workers, or the one pod.")


class RollingUpdateConfiguration(CrdModel):
    max_surge: int | str = optional("Replicas beyond the number while a change rolls out.", 0)
    max_unavailable: int | str = optional("Replicas that may be away while a change rolls out.", 1)
    partition: int | None = optional("Groups below this index keep the old template.", ge=0)


class RolloutStrategy(CrdModel):
    rolling_update_configuration: RollingUpdateConfiguration | None = optional("How a change rolls out.")
    type: Literal["RollingUpdate"] = optional("Replicas are replaced in steps.", "RollingUpdate")


class ServiceSpec(CrdModel):
    """What is served."""

    model_claims: ModelClaims | None = optional("The models that pods fetch.")
    replicas: int = optional("Pods, or groups of pods.", 1, ge=0)
    rollout_strategy: RolloutStrategy | None = optional("How a change rolls out.")
    workload_template: WorkloadTemplate = required("The pods.")
