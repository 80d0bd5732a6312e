"""The parts of an InferenceService that are copied to the pod template. Pure."""

from __future__ import annotations

from typing import Any

from program.desired.errors import SpecInvalid
from program.desired.quantities import check_quantity
from program.desired.service import PodSettings
from program.dialects.hosts.env import hosted_env
from program.dialects.llmkube.schema.service import ResourcesSpec, ServiceSpec

OWN_VOLUMES = frozenset(
    {"model-cache", "model-storage", "model-source", "host-model", "custom-ca-cert", "draft-0", "draft-1"}
)
"""Volumes that pods may have for their weights. A user's volume must not have such a name."""
_WITHOUT_WEIGHTS = ("llamacpp-router", "generic", "personaplex")
"""Runtimes whose pods have none of these volumes, so that users may use the names."""


def pod_settings(spec: ServiceSpec, raw: dict[str, Any], *, on_host: bool) -> PodSettings:
    """Read the settings. `raw` is the spec as written; its Kubernetes structures are copied unread.

    A process on a host gets the environment's values and Secret references, the memory, and the labels and tolerations
    that select its host. Raises SpecInvalid for invalid quantities, and for volumes with the same name.
    """
    resources = spec.resources or ResourcesSpec()
    at = "spec.resources"
    cpu = check_quantity(resources.cpu, field=f"{at}.cpu", unit="cpu")
    memory = check_quantity(resources.memory, field=f"{at}.memory", unit="memory")
    host_memory = check_quantity(resources.host_memory, field=f"{at}.hostMemory", unit="memory")
    disk = check_quantity(resources.ephemeral_storage, field=f"{at}.ephemeralStorage", unit="memory")
    env = tuple(raw.get("env", ()))
    if on_host:
        return PodSettings(
            env=hosted_env(env, field="spec.env"),
            memory_request=host_memory or memory,
            node_selector=spec.node_selector,
            tolerations=tuple(raw.get("tolerations", ())),
        )
    _check_volumes(spec)
    probes = raw.get("probeOverrides", {})
    return PodSettings(
        labels=spec.pod_labels,
        annotations=spec.pod_annotations,
        node_selector=spec.node_selector,
        tolerations=tuple(raw.get("tolerations", ())),
        runtime_class_name=spec.runtime_class_name or None,
        pod_security_context=raw.get("podSecurityContext"),
        security_context=raw.get("securityContext"),
        image_pull_secrets=tuple(raw.get("imagePullSecrets", ())),
        env=env,
        startup_probe=probes.get("startup"),
        liveness_probe=probes.get("liveness"),
        readiness_probe=probes.get("readiness"),
        priority_class_name=spec.priority_class_name or f"llmkube-{spec.priority}",
        cpu_request=cpu,
        memory_request=host_memory or memory,
        ephemeral_storage=disk,
        affinity=raw.get("affinity") or None,
        topology_spread=tuple(raw.get("topologySpreadConstraints", ())),
        extra_volumes=tuple(raw.get("extraVolumes", ())),
        extra_volume_mounts=tuple(raw.get("extraVolumeMounts", ())),
    )


def _check_volumes(spec: ServiceSpec) -> None:
    names: set[str] = set()
    own = frozenset() if spec.runtime in _WITHOUT_WEIGHTS else OWN_VOLUMES
    for index, volume in enumerate(spec.extra_volumes):
        if volume.name in own or volume.name in names:
            whose = "the weights' volume" if volume.name in own else "another volume"
            raise SpecInvalid(
                field=f"spec.extraVolumes[{index}].name",
                why=f"`{volume.name[:63]}` is the name of {whose}; choose another",
            )
        names.add(volume.name)
    for index, mount in enumerate(spec.extra_volume_mounts):
        if mount.name not in names | OWN_VOLUMES:
            raise SpecInvalid(
                field=f"spec.extraVolumeMounts[{index}].name", why=f"`{mount.name[:63]}` is not among spec.extraVolumes"
            )
