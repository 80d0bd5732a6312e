"""BackendRuntime (`br`) of inference.llmaz.io/v1alpha1: an engine's image and the arguments that it is started with.

`backend_runtimes` reads objects through `BackendRuntimeSpec`; `crds` generates the CRD from it.
"""

from __future__ import annotations

from typing import Any

from program.dialects.crd_schema import CrdModel, optional, required
from program.dialects.llmaz.common_schema import MOST, Env, Quantity, Resources, ScaleTrigger


class RecommendedConfig(CrdModel):
    args: list[str] = optional("Arguments, with variables such as `{{ .ModelPath }}`.", [])
    name: str = required("Name by which Playgrounds choose it.", min_length=1)
    resources: Resources | None = optional("What the container asks for.")
    scale_trigger: ScaleTrigger | None = optional("What an elastic Playground scales on, where it says nothing itself.")
    shared_memory_size: Quantity | None = optional("Size of /dev/shm.")


class BackendRuntimeSpec(CrdModel):
    """The engine."""

    command: list[str] = optional("The container's entrypoint; the image's own when absent.", [])
    envs: list[Env] = optional("Environment of the container.", [])
    image: str = required("Image without its tag.", min_length=1)
    lifecycle: dict[str, Any] | None = optional("Hooks of the container, as Kubernetes writes them.")
    liveness_probe: dict[str, Any] | None = optional("As Kubernetes writes it.")
    readiness_probe: dict[str, Any] | None = optional("As Kubernetes writes it.")
    recommended_configs: list[RecommendedConfig] = optional(
        "Ways to start the engine: `default`, `speculative-decoding`, and others that Playgrounds name.",
        [],
        max_length=MOST,
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["name"],
    )
    startup_probe: dict[str, Any] | None = optional("As Kubernetes writes it.")
    version: str = required("Tag of the image.", min_length=1)
