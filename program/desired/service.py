"""One service, fully resolved: what a dialect parses a custom resource into, and everything below it builds from.

Dialects create these; `components` render them for Kubernetes, `automation.placement` turns them into host plans.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from program.desired.base import Desired, JsonObject
from program.desired.engines import EngineSettings
from program.desired.keys import Owner, ServiceKey
from program.desired.model import DesiredModel, Gpu


class Endpoint(Desired):
    """How clients reach the service."""

    port: int | None = None
    """The Service's port as the user wrote it; None means 8080 (LLMKube's URL), whatever port the container has."""
    path: str = "/v1/chat/completions"
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"


class ScalingMetric(Desired):
    type: Literal["Pods", "Resource"]
    name: str
    target_average_value: str | None = None
    target_average_utilization: int | None = None


class Autoscaling(Desired):
    """A HorizontalPodAutoscaler; while it exists the live replica count is not ours."""

    min_replicas: int = 1
    max_replicas: int
    metrics: tuple[ScalingMetric, ...] = ()
    """Empty means the runtime's own default metric."""


class PodSettings(Desired):
    """What a user may say about the pods, passed through to the pod template."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[JsonObject, ...] = ()
    runtime_class_name: str | None = None
    pod_security_context: JsonObject | None = None
    security_context: JsonObject | None = None
    image_pull_secrets: tuple[JsonObject, ...] = ()
    env: tuple[JsonObject, ...] = ()
    startup_probe: JsonObject | None = None
    liveness_probe: JsonObject | None = None
    readiness_probe: JsonObject | None = None
    priority_class_name: str = "llmkube-normal"
    cpu_request: str | None = None
    memory_request: str | None = None


class HostPlacement(Desired):
    """The service runs as a process on a host. `host` is None while no host has been chosen."""

    host: str | None = None


class DesiredService(Desired):
    """A service as it should be, with its model resolved."""

    key: ServiceKey
    owner: Owner | None
    """None: nothing in the cluster owns what is made, as in a static fleet, where there is no custom resource."""
    generation: int = 0
    model: DesiredModel
    engine: EngineSettings
    image: str | None = None
    """The user's own image; None means the runtime's default for the accelerator."""
    command: tuple[str, ...] = ()
    replicas: int = 1
    autoscaling: Autoscaling | None = None
    endpoint: Endpoint = Endpoint()
    container_port: int | None = None
    gpu: Gpu | None = None
    pod: PodSettings = PodSettings()
    skip_model_init: bool = False
    priority: Literal["critical", "high", "normal", "low", "batch"] = "normal"
    eviction_protection: bool = False
    host_placement: HostPlacement | None = None
    """None: the service runs in the cluster's pods."""
    adopt: bool = False
    """Take over objects of the same names that somebody else made (annotation `herdsman.dev/adopt: "true"`)."""
