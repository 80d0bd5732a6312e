"""Playground (`pl`) and BackendRuntime (`br`) of inference.llmaz.io/v1alpha1: a model on an engine, and the engine."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, optional, required, rule
from program.dialects.llmaz.schema.common import MOST, Env, Quantity, Resources, ScaleTrigger

Role = Literal["main", "draft"]


class ModelReference(CrdModel):
    name: str = required("Name of an OpenModel.", min_length=1)
    role: Role = optional("`main` for the model that serves, `draft` for its draft model.", "main")


class ModelClaims(CrdModel):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "!self.models.exists(m, has(m.role) && m.role == 'draft') || self.models.size() == 2",
                    "a draft needs exactly one other model",
                    field=".models",
                ),
                rule(
                    "self.models.filter(m, !has(m.role) || m.role == 'main').size() == 1",
                    "exactly one model must have the role main",
                    field=".models",
                ),
            ]
        }
    )
    inference_flavors: list[str] = optional("Flavors of the main model, the preferred first; all when absent.", [])
    models: list[ModelReference] = required("The models.", min_length=1, max_length=8)


class ModelClaim(CrdModel):
    inference_flavors: list[str] = optional("Flavors of the model, the preferred first; all when absent.", [])
    model_name: str = required("Name of an OpenModel.", min_length=1)


class BackendRuntimeConfig(CrdModel):
    args: list[str] = optional("Arguments after those of the recommended config.", [])
    backend_name: str = optional("Name of a BackendRuntime.", "vllm")
    config_name: str | None = optional(
        "Name of a recommended config; `default`, or `speculative-decoding` with a draft, when absent."
    )
    envs: list[Env] = optional("Environment variables; they override those of the runtime.", [])
    resources: Resources | None = optional("Resources of the container; they override those of the recommended config.")
    shared_memory_size: Quantity | None = optional("Size of /dev/shm.")
    version: str | None = optional("Tag of the image instead of the runtime's.")


class ElasticConfig(CrdModel):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
                    "minReplicas must not be greater than maxReplicas",
                    field=".minReplicas",
                )
            ]
        }
    )
    max_replicas: int = required("Maximum number of replicas.", ge=1)
    min_replicas: int = optional("Minimum number of replicas.", 1, ge=1)
    scale_trigger: ScaleTrigger | None = optional("Metrics to scale on; those of the runtime when absent.")


class PlaygroundSpec(CrdModel):
    """The wanted model, engine and number of replicas."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule("has(self.modelClaim) || has(self.modelClaims)", "set modelClaim or modelClaims"),
                rule("!(has(self.modelClaim) && has(self.modelClaims))", "set modelClaim or modelClaims, and not both"),
            ]
        }
    )
    backend_runtime_config: BackendRuntimeConfig | None = optional(
        "Engine and its settings; vllm with its default settings when absent."
    )
    elastic_config: ElasticConfig | None = optional("Autoscaler for the number of replicas.")
    model_claim: ModelClaim | None = optional("The model, if there is one.")
    model_claims: ModelClaims | None = optional("The models, if there are several: a model and its draft.")
    replicas: int = optional("Number of pods.", 1, ge=0)


class RecommendedConfig(CrdModel):
    args: list[str] = optional("Arguments, with variables such as `{{ .ModelPath }}`.", [])
    name: str = required("Name by which Playgrounds choose it.", min_length=1)
    resources: Resources | None = optional("Resources of the container.")
    scale_trigger: ScaleTrigger | None = optional("Default metrics for elastic Playgrounds.")
    shared_memory_size: Quantity | None = optional("Size of /dev/shm.")


class BackendRuntimeSpec(CrdModel):
    """The engine."""

    command: list[str] = optional("Entrypoint of the container; that of the image when absent.", [])
    envs: list[Env] = optional("Environment of the container.", [])
    image: str = required("Image without its tag.", min_length=1)
    lifecycle: dict[str, Any] | None = optional("Lifecycle hooks of the container, in Kubernetes' format.")
    liveness_probe: dict[str, Any] | None = optional("As Kubernetes writes it.")
    readiness_probe: dict[str, Any] | None = optional("As Kubernetes writes it.")
    recommended_configs: list[RecommendedConfig] = optional(
        "Configurations to start the engine with: `default`, `speculative-decoding`, and others that Playgrounds name.",
        [],
        max_length=MOST,
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["name"],
    )
    startup_probe: dict[str, Any] | None = optional("As Kubernetes writes it.")
    version: str = required("Tag of the image.", min_length=1)
