"""A service's pod: the engine's container, its weights, its hardware, and what the user said about pods.

Called by `components.deployment`; asks `program.runtimes` for the engine's part, `components.model_files` for the
weights, `components.hardware` for devices and `components.drain` for the end.
"""

from __future__ import annotations

from components import hardware, naming
from components.drain import drains, grace_period_s, pre_stop, probe_of_drained
from components.model_files import ModelFiles, model_files
from components.object_metadata import workload_labels
from components.options import RenderOptions
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.service import DesiredService
from program.runtimes import Runtime, runtime_for

BIND_ADDRESS = "::"
"""IPv6's any address takes IPv4 connections too."""


def container_port(desired: DesiredService) -> int:
    """Return the port that the engine really listens on; Services, probes and arguments all take it from here."""
    runtime = runtime_for(desired.engine)
    if desired.container_port is not None:
        return desired.container_port
    if runtime.takes_port and desired.endpoint.port is not None:
        return desired.endpoint.port
    return runtime.default_port


def pod_template(desired: DesiredService, options: RenderOptions) -> Json:
    """Build the pod template.

    Raises SpecInvalid when the runtime has no image of its own and the user names none, for a time-shared GPU that the
    operator has no nodes for, and for a volume of the user's in the place of one of ours.
    """
    pod = desired.pod
    files = model_files(desired, options)
    runtime = runtime_for(desired.engine)
    metadata: Json = {"labels": {**pod.labels, **workload_labels(desired)}}
    if annotations := {**_disruption(desired), **_undrained(desired), **pod.annotations}:
        metadata["annotations"] = annotations
    # What is empty says nothing, and is left out.
    optional: Json = {
        "initContainers": list(files.init_containers),
        "volumes": _volumes(desired, files),
        "resourceClaims": list(desired.gpu.claims) if desired.gpu else [],
        "tolerations": hardware.tolerations(desired),
        "nodeSelector": hardware.node_selector(desired, options),
        "affinity": pod.affinity,
        "topologySpreadConstraints": list(pod.topology_spread),
        "runtimeClassName": pod.runtime_class_name,
        "imagePullSecrets": _last_of_each_name(pod.image_pull_secrets),
        "readinessGates": [{"conditionType": naming.CONDITION_COMPLETED}] if desired.readiness_gate else [],
        "terminationGracePeriodSeconds": grace_period_s(desired) if drains(desired) else None,
    }
    spec: Json = {
        "containers": [_container(desired, runtime, files, options)],
        "securityContext": _pod_security(desired, options),
        "priorityClassName": pod.priority_class_name,
        **{field: value for field, value in optional.items() if value},
    }
    if not runtime.service_links:
        spec["enableServiceLinks"] = False
    return {"metadata": metadata, "spec": spec}


def _container(desired: DesiredService, runtime: Runtime, files: ModelFiles, options: RenderOptions) -> Json:
    pod = desired.pod
    port = container_port(desired)
    probes = runtime.probes(port)
    host = desired.bind_address or BIND_ADDRESS
    optional: Json = {
        "command": list(desired.command or runtime.command),
        "args": runtime.argv(desired, model_path=files.path, port=port, host=host, draft_path=files.draft_path),
        "env": _last_of_each_name((*runtime.env(desired), *pod.env)),
        "volumeMounts": _mounts(desired, files),
        "resources": hardware.resources(desired),
        "lifecycle": {"preStop": pre_stop(desired, port)} if drains(desired) else {},
    }
    startup, liveness = pod.startup_probe or probes.startup, pod.liveness_probe or probes.liveness
    if drains(desired) and runtime.drains:
        startup, liveness = probe_of_drained(startup), probe_of_drained(liveness)
    return {
        "name": runtime.container_name,
        "image": _image(desired, runtime, options),
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "startupProbe": startup,
        "livenessProbe": liveness,
        "readinessProbe": pod.readiness_probe or probes.readiness,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": pod.security_context
        if pod.security_context is not None
        else {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **{field: value for field, value in optional.items() if value},
    }


def _image(desired: DesiredService, runtime: Runtime, options: RenderOptions) -> str:
    vendor = f"{runtime.name}-{desired.gpu.vendor}" if desired.gpu else runtime.name
    configured = options.runtime_images.get(vendor) or options.runtime_images.get(runtime.name)
    image = desired.image or configured or runtime.default_image(desired)
    if not image:
        raise SpecInvalid(field="spec.image", why=f"runtime `{runtime.name}` has no image of its own; name one")
    return image


def _disruption(desired: DesiredService) -> dict[str, str]:
    """Keep node autoscalers off new pods while they load their weights; the loop takes it off pods that serve."""
    disruption = desired.disruption
    protected = disruption.protect_startup or disruption.protect_always
    return {naming.ANNOTATION_DO_NOT_DISRUPT: "true"} if protected else {}


def _undrained(desired: DesiredService) -> dict[str, str]:
    """Note on the pods that they drop their requests. Hashes do not count a default drain, but they count this."""
    return {naming.ANNOTATION_DRAIN: "false"} if desired.drain_s == 0 else {}


def _pod_security(desired: DesiredService, options: RenderOptions) -> Json:
    if desired.pod.pod_security_context is not None:
        return desired.pod.pod_security_context
    security: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if options.default_fs_group > 0:
        security["fsGroup"] = options.default_fs_group
    if groups := hardware.supplemental_groups(desired, options):
        security["supplementalGroups"] = groups
    return security


def _volumes(desired: DesiredService, files: ModelFiles) -> list[Json]:
    taken = {volume["name"] for volume in files.volumes}
    for index, volume in enumerate(desired.pod.extra_volumes):
        if volume.get("name") in taken:
            raise SpecInvalid(
                field=f"spec.extraVolumes[{index}].name",
                why=f"`{volume['name']}` is the name of a volume with weights; choose another",
            )
    return [*files.volumes, *desired.pod.extra_volumes]


def _mounts(desired: DesiredService, files: ModelFiles) -> list[Json]:
    taken = {mount["mountPath"] for mount in files.mounts}
    for index, mount in enumerate(desired.pod.extra_volume_mounts):
        if mount.get("mountPath") in taken:
            raise SpecInvalid(
                field=f"spec.extraVolumeMounts[{index}].mountPath",
                why=f"`{mount['mountPath']}` is where the weights are mounted; choose another path",
            )
    return [*files.mounts, *desired.pod.extra_volume_mounts]


def _last_of_each_name(entries: tuple[Json, ...]) -> list[Json]:
    """Keep the last entry of each name, as the kubelet would; server-side apply refuses the same name twice."""
    return list({entry["name"]: entry for entry in entries}.values())
