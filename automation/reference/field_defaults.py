"""Defaults of fields that the API server does not set: Herdsman applies them. Called by `crds.py`."""

from __future__ import annotations

from typing import Any

from agent.client.ssh.target import DEFAULT_SECRETS, DEFAULT_STORE
from agent.contract import DRAIN_TIMEOUT_S
from agent.proxy.limits import DEFAULT_MAX_HELD, DEFAULT_WAKE_TIMEOUT_S

APPLIED: dict[str, dict[str, Any]] = {
    "InferenceService": {
        "spec.disruption.protectAlways": False,
        "spec.endpoint.gateway.enabled": False,
        "spec.evictionProtection": False,
        "spec.mode": "chat",
        "spec.modelCache.persistence": "Cached",
        "spec.rolloutPolicy.force": False,
        "spec.rolloutPolicy.waitForIdle": False,
        "spec.skipModelInit": False,
        "spec.autoscaling.metrics[].targetAverageUtilization": 80,
    },
}
"""Values that count as if the field were absent, by kind and path. A test renders both."""

COMPUTED: dict[str, dict[str, str]] = {
    "InferenceService": {
        "spec.autoscaling.metrics": "the engine's metric of running requests, 2 for each pod; without one, the CPU",
        "spec.bindAddress": "`::`; `0.0.0.0` for ollama",
        "spec.command": "the image's entrypoint, or the engine's command",
        "spec.containerPort": "`endpoint.port`; for some engines their own port",
        "spec.endpoint.gateway.gatewayRef.namespace": "the service's namespace",
        "spec.endpoint.gateway.modelName": "the value of `modelRef`",
        "spec.endpoint.nodePort": "a port that Kubernetes chooses",
        "spec.image": "the image of the engine and the GPU's vendor",
        "spec.maxPodLifetimeIdleTimeoutSeconds": "no limit",
        "spec.podSecurityContext": "`fsGroup` of setting `default_fsgroup`",
        "spec.priorityClassName": "`llmkube-` and the value of `priority`",
        "spec.probeOverrides.liveness": "the engine's probe",
        "spec.probeOverrides.readiness": "the engine's probe",
        "spec.probeOverrides.startup": "the engine's probe",
        "spec.resources.gpu": "the Model's GPU count",
        "spec.resources.gpuMemory": "the Model's `hardware.gpu.memory`",
        "spec.revisionHistoryLimit": "`10`, by Kubernetes",
        "spec.slo.name": "`<service>-<indicator>`",
    },
    "Model": {
        "spec.hardware.gpu.count": "`1` with `enabled: true`, otherwise the service's `resources.gpu`",
        "spec.hardware.gpu.layers": "all layers",
        "spec.hardware.gpu.resourceName": "the resource of the vendor's device plugin, such as `nvidia.com/gpu`",
        "spec.hardware.gpu.tolerationKey": "the name of the resource",
        "spec.hardware.memoryFraction": "the budget of the host",
        "spec.hardware.memoryBudget": "the budget of the host",
        "spec.prefetch": "`false`",
    },
    "Host": {
        "spec.address": "the address that the agent reports",
        "spec.allow": "Herdsman's engines with the arguments that need no permission",
        "spec.memoryBudget": "`memoryFraction`; without it, a share that depends on the operating system",
        "spec.runtimes": "all runtimes that are installed on the host",
        "spec.ssh.bastion.user": "the value of `ssh.user`",
        "spec.ssh.secrets": f"`{DEFAULT_SECRETS}`",
        "spec.ssh.store": f"`{DEFAULT_STORE}`",
        "spec.storeSize": "`--store-size` of the agent; without it, no limit",
    },
    "HostProcess": {
        "spec.drainTimeoutS": f"`{DRAIN_TIMEOUT_S:g}`",
        "spec.endpointSlice": "the value of `serviceName`",
        "spec.maxHeldRequests": f"`{DEFAULT_MAX_HELD}`",
        "spec.memoryCheck": "`enforce`",
        "spec.replica": "`0`",
        "spec.wakeTimeoutS": f"`{DEFAULT_WAKE_TIMEOUT_S:g}`",
    },
}
"""Defaults that depend on other fields, on the engine or on the cluster. They are shown instead of a value."""
