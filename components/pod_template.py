"""The pod of a service: the engine's container, its weights, its hardware, and the user's settings for pods.

Called by `components.engine_workloads`. `program.runtimes` gives the engine's part, `components.model_files` the
weights, and `components.drain` the hooks at the pod's end.
"""

from __future__ import annotations

from collections.abc import Iterable

from components import naming
from components.drain import drains, grace_period_s, pre_stop, probe_of_drained
from components.model_files import ModelFiles
from components.naming import workload_labels
from components.options import RenderOptions
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.model import Gpu, GpuVendor
from program.desired.service import DesiredService
from program.runtimes import Runtime, runtime_for

BIND_ADDRESS = "::"
"""IPv6's any address, which accepts IPv4 connections too."""
RENDER_NODE = "devic.es/dri-render"
"""The resource of the generic device plugin for /dev/dri/renderD*, whose files belong to a group of the node."""


def container_port(desired: DesiredService) -> int:
    """Return the port that the engine listens on; Services, probes and arguments use it."""
    runtime = runtime_for(desired.engine)
    if desired.container_port is not None:
        return desired.container_port
    if runtime.takes_port and desired.endpoint.port is not None:
        return desired.endpoint.port
    return runtime.default_port


def pod_template(desired: DesiredService, options: RenderOptions, files: ModelFiles) -> Json:
    """Build the pod template; `files` is the result of `model_files`.

    Raises SpecInvalid if neither the runtime nor the user names an image, for a time-shared GPU if the installation has
    no nodes for it, and for a volume or mount of the user that conflicts with one of Herdsman's.
    """
    pod = desired.pod
    runtime = runtime_for(desired.engine)
    metadata: Json = {"labels": {**pod.labels, **workload_labels(desired)}}
    if annotations := {**_disruption(desired), **_undrained(desired), **pod.annotations}:
        metadata["annotations"] = annotations
    # Empty fields are left out.
    optional: Json = {
        "initContainers": list(files.init_containers),
        "volumes": _volumes(desired, files),
        "resourceClaims": list(desired.gpu.claims) if desired.gpu else [],
        "tolerations": _tolerations(desired),
        "nodeSelector": _node_selector(desired, options),
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
        "resources": _resources(desired),
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
        raise SpecInvalid(field="spec.image", why=f"runtime `{runtime.name}` has no default image; set spec.image")
    return image


def _disruption(desired: DesiredService) -> dict[str, str]:
    """Return the annotation that keeps node autoscalers from removing new pods while they load their weights.

    The loop removes it from pods that serve.
    """
    disruption = desired.disruption
    protected = disruption.protect_startup or disruption.protect_always
    return {naming.ANNOTATION_DO_NOT_DISRUPT: "true"} if protected else {}


def _undrained(desired: DesiredService) -> dict[str, str]:
    """Return the annotation that marks pods which drop their requests at the end.

    Hashes do not count a default drain, but they count this annotation.
    """
    return {naming.ANNOTATION_DRAIN: "false"} if desired.drain_s == 0 else {}


def _pod_security(desired: DesiredService, options: RenderOptions) -> Json:
    if desired.pod.pod_security_context is not None:
        return desired.pod.pod_security_context
    security: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if options.default_fs_group > 0:
        security["fsGroup"] = options.default_fs_group
    if groups := _supplemental_groups(desired, options):
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
    """Keep the last entry of each name, as the kubelet does; server-side apply refuses two entries of one name."""
    # A reference to a Secret may lack its name, which the API server takes as empty.
    return list({entry.get("name", ""): entry for entry in entries}.values())


def _resources(desired: DesiredService) -> Json:
    """Build the container's resources: GPUs as limits, CPU and memory as requests, as in LLMKube."""
    pod = desired.pod
    requests = {"cpu": pod.cpu_request, "memory": pod.memory_request, "ephemeral-storage": pod.ephemeral_storage}
    limits = {"ephemeral-storage": pod.ephemeral_storage}
    built: Json = {}
    if desired.gpu and desired.gpu.claims:
        built["claims"] = [{"name": claim["name"]} for claim in desired.gpu.claims]
    elif desired.gpu:
        limits[desired.gpu.resource_name] = str(desired.gpu.count)
    for kind, quantities in (("requests", requests), ("limits", limits)):
        if given := {name: quantity for name, quantity in quantities.items() if quantity}:
            built[kind] = given
    return built


def _tolerations(desired: DesiredService) -> list[Json]:
    """Return the toleration for the taint of GPU nodes and those of the user, each once."""
    return once([*_gpu_tolerations(desired.gpu), *desired.pod.tolerations])


def once(written: Iterable[Json]) -> list[Json]:
    """Return the tolerations without later ones of the same meaning."""
    found: dict[tuple[object, ...], Json] = {}
    for each in written:
        seconds = each.get("tolerationSeconds")
        said = (each.get("key") or "", each.get("operator") or "Equal", each.get("value") or "")
        effect = each.get("effect") or ""
        found.setdefault((*said, effect, seconds), each)
    return list(found.values())


def _gpu_tolerations(gpu: Gpu | None) -> list[Json]:
    if gpu is None:
        return []
    return [
        {
            "key": gpu.toleration_key or gpu.resource_name,
            "operator": "Equal",
            "value": "present",
            "effect": "NoSchedule",
        }
    ]


def _node_selector(desired: DesiredService, options: RenderOptions) -> dict[str, str]:
    """Return the node selector: labels of nodes with time-shared GPUs if the service shares one, and the user's.

    The user's labels take precedence. Raises SpecInvalid if the installation has no nodes with time-shared GPUs. AMD's
    render nodes can always be shared and need no such nodes.
    """
    gpu = desired.gpu
    if gpu is None or not gpu.shared or gpu.vendor is GpuVendor.AMD:
        return desired.pod.node_selector
    if not options.shared_gpu_selector:
        raise SpecInvalid(
            field="spec.resources.gpuSharing.mode",
            why="mode `shared` needs nodes with time-shared GPUs; name them in the operator's setting "
            "HERDSMAN_SHARED_GPU_SELECTOR",
        )
    return {**options.shared_gpu_selector, **desired.pod.node_selector}


def _supplemental_groups(desired: DesiredService, options: RenderOptions) -> list[int]:
    """Return the groups that a pod needs for its devices."""
    uses_render_node = desired.gpu is not None and desired.gpu.resource_name == RENDER_NODE
    return [options.render_group] if uses_render_node and options.render_group > 0 else []


def is_exclusive(gpu: Gpu | None) -> bool:
    """Return whether the pod has hardware that another pod must wait for: a GPU, a part of one, a claim."""
    return gpu is not None and not gpu.shared
